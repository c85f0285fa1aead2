//! Arbitrary bytes as a sequence of C calls, with handles that are live, freed, of another kind, or never were handles.
//! Calls with a handle that is not live fail with `Status::Handle`; what a session contains is what the calls say.
#![no_main]

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::{LazyLock, Mutex};

use akunu_capi::*;
use akunu_fixtures::scripted;
use libfuzzer_sys::fuzz_target;

/// The context and the number of sessions of each model.
const CONTEXT: usize = 64;
const SESSIONS: usize = 2;
/// The tokens of the scripted model.
const VOCABULARY: usize = 288;
const MAX_CALLS: usize = 40;

static MODEL: LazyLock<CString> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("akunu-capi-{}.gguf", std::process::id()));
    scripted::write(&path, Some(scripted::CHATML), &["\n", "Yes.", "And", "no."]);
    CString::new(path.to_str().expect("a path in UTF-8")).expect("a path without null characters")
});

/// The handle of a model that the input before has left, since loading one takes longer than most calls.
static KEPT: Mutex<Option<usize>> = Mutex::new(None);

/// A handle that was returned, and its session's tokens (`None`: not known).
struct Handle {
    number: usize,
    is_live: bool,
    /// The index of a session's model.
    model: usize,
    tokens: Option<Vec<u32>>,
}

#[derive(Default)]
struct Program<'a> {
    input: &'a [u8],
    models: Vec<Handle>,
    sessions: Vec<Handle>,
}

fn is_live(handle: Option<&Handle>) -> bool {
    handle.is_some_and(|handle| handle.is_live)
}

/// Checks what a call returned for its handles.
fn check(status: Status, handles_are_live: bool, call: &str) {
    assert_ne!(status, Status::Internal, "{call}");
    assert_eq!(status != Status::Handle, handles_are_live, "{call}: {status:?}");
}

impl Program<'_> {
    fn byte(&mut self) -> usize {
        let (&first, rest) = self.input.split_first().unwrap_or((&0, &[]));
        self.input = rest;
        first.into()
    }

    fn tokens(&mut self) -> Vec<u32> {
        let count = self.byte() % (CONTEXT + 4);
        (0..count).map(|_| (self.byte() + self.byte()) as u32 % (VOCABULARY as u32 + 2)).collect()
    }

    /// The index of a handle in its list, and the number to pass; or a number that is no handle of this kind.
    fn pick(&mut self, is_session: bool) -> (Option<usize>, usize) {
        let choice = self.byte();
        let (own, other) = match is_session {
            true => (&self.sessions, &self.models),
            false => (&self.models, &self.sessions),
        };
        match choice % 8 {
            0 => (None, 0),
            1 => (None, choice << 7 | 1),
            2 => (None, other.last().map_or(7, |handle| handle.number)),
            _ if own.is_empty() => (None, 7),
            // Mostly the latest ones.
            _ => {
                let index = own.len() - 1 - choice / 8 % own.len().min(4);
                (Some(index), own[index].number)
            }
        }
    }

    fn load(&mut self, kv_type: u32) {
        if self.models.iter().filter(|model| model.is_live).count() == 2 {
            return;
        }
        let options = LoadOptions {
            threads: 1,
            device: c"reference".as_ptr(),
            context: CONTEXT as u32,
            sessions: SESSIONS as u32,
            kv_type,
            chunk: 16,
            chain: 4,
            ..LoadOptions::default()
        };
        let mut model = null_mut();
        // SAFETY: the path and the device are texts, and the pointers are valid.
        let status = unsafe { akunu_load_model(MODEL.as_ptr(), &options, &mut model) };
        let is_valid = options.kv_type < 3;
        assert_eq!(status, if is_valid { Status::Ok } else { Status::Argument });
        if is_valid {
            self.models.push(Handle { number: model.addr(), is_live: true, model: 0, tokens: None });
        }
    }

    fn free_model(&mut self) {
        let (index, number) = self.pick(false);
        // SAFETY: any value of a handle is allowed.
        let status = unsafe { akunu_free_model(without_provenance_mut(number)) };
        check(status, number == 0 || is_live(index.map(|index| &self.models[index])), "akunu_free_model");
        if let Some(index) = index {
            self.models[index].is_live = false;
            self.sessions.iter_mut().filter(|session| session.model == index).for_each(|s| s.is_live = false);
        }
    }

    fn create_session(&mut self) {
        let (index, number) = self.pick(false);
        let mut session = null_mut();
        // SAFETY: any value of a handle is allowed, and the pointer is valid.
        let status = unsafe { akunu_create_session(without_provenance_mut(number), &mut session) };
        check(status, is_live(index.map(|index| &self.models[index])), "akunu_create_session");
        let Some(model) = index.filter(|&index| self.models[index].is_live) else { return };
        let used = self.sessions.iter().filter(|session| session.is_live && session.model == model).count();
        assert_eq!(status, if used < SESSIONS { Status::Ok } else { Status::NoSession });
        if status == Status::Ok {
            let tokens = Some(Vec::new());
            self.sessions.push(Handle { number: session.addr(), is_live: true, model, tokens });
        }
    }

    fn free_session(&mut self) {
        let (index, number) = self.pick(true);
        // SAFETY: any value of a handle is allowed.
        let status = unsafe { akunu_free_session(without_provenance_mut(number)) };
        check(status, number == 0 || is_live(index.map(|index| &self.sessions[index])), "akunu_free_session");
        if let Some(index) = index {
            self.sessions[index].is_live = false;
        }
    }

    /// Calls a function with a session. If it succeeds, `change` says what the session contains.
    fn with_session(
        &mut self,
        name: &str,
        call: impl FnOnce(*mut SessionHandle) -> Status,
        change: impl FnOnce(Option<Vec<u32>>) -> Option<Vec<u32>>,
    ) {
        let (index, number) = self.pick(true);
        let status = call(without_provenance_mut(number));
        check(status, is_live(index.map(|index| &self.sessions[index])), name);
        if let Some(session) = index.map(|index| &mut self.sessions[index]) {
            // What a failed call leaves in the session is not promised.
            let before = session.tokens.take();
            session.tokens = if status == Status::Ok { change(before) } else { None };
        }
    }

    fn prefill(&mut self) {
        let tokens = self.tokens();
        let (mut next, mut reused) = (u32::MAX, usize::MAX);
        // SAFETY: the list and the pointers are valid.
        let call = |session| unsafe {
            akunu_prefill(session, tokens.as_ptr(), tokens.len(), &mut next, &mut reused)
        };
        self.with_session("akunu_prefill", call, |_| Some(tokens.clone()));
        assert!(next == u32::MAX || (next as usize) < VOCABULARY);
        assert!(reused == usize::MAX || reused < tokens.len());
    }

    fn decode_step(&mut self) {
        let token = self.byte() as u32 + 33;
        let mut next = u32::MAX;
        // SAFETY: the pointer is valid.
        let call = |session| unsafe { akunu_decode_step(session, token, &mut next) };
        self.with_session("akunu_decode_step", call, |tokens| Some([tokens?, vec![token]].concat()));
        assert!(next == u32::MAX || (next as usize) < VOCABULARY);
    }

    fn chain(&mut self) {
        let (token, steps, capacity) = (self.byte() as u32, self.byte() % 9, self.byte() % 12);
        let (mut found, mut count) = (vec![0; capacity], usize::MAX);
        let (buffer, length) = (found.as_mut_ptr(), &raw mut count);
        // SAFETY: the buffer has the capacity, and the pointer is valid.
        let call = |session| unsafe { akunu_chain_decode(session, token, steps, buffer, capacity, length) };
        self.with_session("akunu_chain_decode", call, |tokens| {
            // SAFETY: nothing else uses it any more.
            found.truncate(unsafe { length.read() });
            found.pop();
            Some([tokens?, vec![token], found].concat())
        });
    }

    fn truncate(&mut self) {
        let length = self.byte() % (CONTEXT + 2);
        // SAFETY: any value of a handle is allowed.
        let call = |session| unsafe { akunu_session_truncate(session, length) };
        self.with_session("akunu_session_truncate", call, |tokens| {
            let mut tokens = tokens?;
            assert!(length <= tokens.len());
            tokens.truncate(length);
            Some(tokens)
        });
    }

    fn generate(&mut self) {
        let tokens = self.tokens();
        let settings = GenerateSettings {
            max_tokens: (self.byte() % 8) as u32,
            overflow: (self.byte() % 4) as u32,
            keep: (self.byte() % 8) as u32,
            ignore_end: (self.byte() % 2) as u32,
            ..GenerateSettings::default()
        };
        let max_tokens = 1 + settings.max_tokens % 8;
        let settings = GenerateSettings { max_tokens, ..settings };
        let continues = self.byte() % 2 == 1;
        let generate = if continues { akunu_generate_continue } else { akunu_generate };
        // SAFETY: the list and the options are valid, and the rest may be null.
        let call = |session| unsafe {
            generate(session, tokens.as_ptr(), tokens.len(), &settings, None, null_mut(), null_mut())
        };
        self.with_session("akunu_generate", call, |_| None);
    }

    fn answer(&mut self) {
        let len = (self.byte() % 64).min(self.input.len());
        let (text, rest) = self.input.split_at(len);
        self.input = rest;
        let message = serde_json::json!([{ "role": "user", "content": String::from_utf8_lossy(text) }]);
        let conversation = CString::new(message.to_string()).expect("JSON without null characters");
        let (text, options) = (conversation.as_ptr(), null());
        // SAFETY: the conversation is a text, and the rest may be null.
        let call = |session| unsafe {
            akunu_generate_answer(session, text, options, null(), None, null_mut(), null_mut())
        };
        self.with_session("akunu_generate_answer", call, |_| None);
    }

    fn copy(&mut self) {
        let count = self.byte() % (CONTEXT + 2);
        let ((from, a), (to, b)) = (self.pick(true), self.pick(true));
        // SAFETY: any value of a handle is allowed.
        let status =
            unsafe { akunu_session_copy(without_provenance_mut(a), without_provenance_mut(b), count) };
        let live = |index: Option<usize>| is_live(index.map(|index| &self.sessions[index]));
        check(status, live(from) && live(to), "akunu_session_copy");
        let (Some(from), Some(to)) = (from, to) else { return };
        let copied =
            self.sessions[from].tokens.as_ref().map(|tokens| tokens[..count.min(tokens.len())].to_vec());
        match status {
            Status::Ok => self.sessions[to].tokens = copied,
            Status::Handle => {}
            _ => self.sessions[to].tokens = None,
        }
    }

    fn session_tokens(&mut self) {
        let capacity = self.byte() % (CONTEXT + 2);
        let (index, number) = self.pick(true);
        let (mut found, mut count) = (vec![0; capacity], usize::MAX);
        let session = without_provenance_mut(number);
        // SAFETY: the buffer has the capacity, and the pointer is valid.
        let status = unsafe { akunu_session_tokens(session, found.as_mut_ptr(), capacity, &mut count) };
        check(status, is_live(index.map(|index| &self.sessions[index])), "akunu_session_tokens");
        let Some(tokens) = index.map(|index| &self.sessions[index]).filter(|s| s.is_live) else { return };
        assert!(count <= CONTEXT);
        assert!(
            status == if count <= capacity { Status::Ok } else { Status::BufferTooSmall } || capacity == 0
        );
        if let (Status::Ok, Some(tokens), true) = (status, &tokens.tokens, capacity > 0) {
            assert_eq!(found[..count], tokens[..]);
        }
    }

    fn encode(&mut self) {
        let len = self.byte().min(self.input.len());
        let (text, rest) = self.input.split_at(len);
        self.input = rest;
        let (index, number) = self.pick(false);
        let model = without_provenance_mut(number);
        let (mut ids, mut count) = (vec![0; 256], usize::MAX);
        let pointer = text.as_ptr().cast::<c_char>();
        // SAFETY: the text and the buffers have the lengths that are given.
        let status = unsafe { akunu_encode(model, pointer, len, 0, ids.as_mut_ptr(), ids.len(), &mut count) };
        check(status, is_live(index.map(|index| &self.models[index])), "akunu_encode");
        if status != Status::Ok {
            return;
        }
        let text = std::str::from_utf8(text).expect("only UTF-8 is encoded");
        let (mut decoded, mut length) = (vec![0u8; 1024], usize::MAX);
        let buffer = decoded.as_mut_ptr().cast::<c_char>();
        // SAFETY: the list and the buffers have the lengths that are given.
        let status = unsafe { akunu_decode(model, ids.as_ptr(), count, buffer, decoded.len(), &mut length) };
        assert_eq!(status, Status::Ok);
        assert_eq!(std::str::from_utf8(&decoded[..length]), Ok(text.replace('▁', " ").as_str()));
    }

    fn run(&mut self) {
        let kept = KEPT.lock().expect("the lock of a single thread").take();
        match kept {
            Some(number) => self.models.push(Handle { number, is_live: true, model: 0, tokens: None }),
            None => self.load(0),
        }
        for _ in 0..MAX_CALLS {
            if self.input.is_empty() {
                break;
            }
            match self.byte() % 13 {
                0 => {
                    let kv_type = self.byte() % 4;
                    self.load(kv_type as u32);
                }
                1 => self.free_model(),
                2 => self.create_session(),
                3 => self.free_session(),
                4 => self.prefill(),
                5 => self.decode_step(),
                6 => self.chain(),
                7 => self.truncate(),
                8 => self.generate(),
                9 => self.answer(),
                10 => self.copy(),
                11 => self.session_tokens(),
                _ => self.encode(),
            }
        }
        self.end();
    }

    /// Frees all but one model, which is left without sessions, and checks that nothing else is live.
    fn end(&mut self) {
        let kept = self.models.iter().position(|model| model.is_live);
        for index in 0..self.models.len() {
            if self.models[index].is_live && Some(index) != kept {
                // SAFETY: any value of a handle is allowed.
                let status = unsafe { akunu_free_model(without_provenance_mut(self.models[index].number)) };
                assert_eq!(status, Status::Ok);
                let sessions = self.sessions.iter_mut().filter(|session| session.model == index);
                sessions.for_each(|session| session.is_live = false);
            }
        }
        for session in &self.sessions {
            let handle = without_provenance_mut(session.number);
            if session.is_live {
                // SAFETY: any value of a handle is allowed.
                assert_eq!(unsafe { akunu_free_session(handle) }, Status::Ok);
            }
            // SAFETY: any value of a handle is allowed.
            let status = unsafe { akunu_cancel(handle) };
            assert_eq!(status, Status::Handle, "the sessions of freed models are freed");
        }
        *KEPT.lock().expect("the lock of a single thread") = kept.map(|index| self.models[index].number);
    }
}

fuzz_target!(|data: &[u8]| Program { input: data, ..Program::default() }.run());
