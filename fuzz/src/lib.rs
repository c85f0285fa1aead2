//! What the targets `grammar` and `schema` share: grammars over a small vocabulary, compiled and followed without
//! threads, within limits that end a costly input early.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use akunu_grammar::{Client, Grammar, Limits, Mask, ResponseFormat, Session, Vocabulary, Workers};

/// The stack on which grammars are compiled: that of the engine's threads.
const STACK_BYTES: usize = 64 << 20;

/// Steps count, not time, so that an input does the same on each machine.
fn limits() -> Limits {
    Limits {
        symbols: 10_000,
        compile_steps: 10_000,
        mask_steps: 2_000,
        mask_items: 2_000,
        states: 2_000,
        compile_time: Duration::from_secs(60),
        mask_time: Duration::from_secs(60),
        answer_time: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// One token for each byte.
static BYTES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    Arc::new(Vocabulary::new(&tokens, limits()).expect("a vocabulary of bytes"))
});
static WORKERS: LazyLock<Arc<Workers>> = LazyLock::new(|| Arc::new(Workers::without_threads()));

/// Runs one input on a thread with the stack that grammars need.
pub fn on_a_large_stack(input: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, input).expect("a thread");
        thread.join().expect("an input that does not panic");
    });
}

pub fn compile(format: &ResponseFormat) -> Option<Arc<Grammar>> {
    WORKERS.compile(&BYTES, format, None, Client::default()).ok().map(Arc::new)
}

/// The start of the pseudo-random numbers of an input.
pub fn seed(data: &[u8]) -> u64 {
    data.iter().fold(0, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// An answer of at most `steps` bytes, chosen by pseudo-random numbers. It ends where it may with all but one of `ends`
/// numbers; otherwise `pick` chooses one of the allowed bytes.
pub fn answer(
    grammar: &Arc<Grammar>,
    mut state: u64,
    steps: usize,
    ends: usize,
    pick: impl Fn(&[u8], usize) -> Option<u8>,
) -> Option<Vec<u8>> {
    let mut session = Session::new(WORKERS.clone(), grammar.clone());
    let mut text = Vec::new();
    while text.len() < steps {
        if session.is_over() {
            return Some(text);
        }
        let mask = session.mask().ok()?;
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let choice = (state >> 33) as usize;
        if mask.may_end && choice % ends != 0 {
            return Some(text);
        }
        let byte = pick(&allowed(mask), choice / ends)?;
        text.push(byte);
        session.push(byte.into());
    }
    None
}

fn allowed(mask: &Mask) -> Vec<u8> {
    (0..=255).filter(|&byte| mask.contains(byte.into())).collect()
}

/// Whether a grammar allows a text.
pub fn allows(grammar: &Arc<Grammar>, text: &[u8]) -> bool {
    let mut session = Session::new(WORKERS.clone(), grammar.clone());
    for &byte in text {
        if session.is_over() || !session.mask().is_ok_and(|mask| mask.contains(byte.into())) {
            return false;
        }
        session.push(byte.into());
    }
    session.is_over() || session.mask().is_ok_and(|mask| mask.may_end)
}
