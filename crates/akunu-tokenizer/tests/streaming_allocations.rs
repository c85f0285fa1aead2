//! Streaming decoding does not allocate per token, for vocabularies from any kind of file.

#![allow(clippy::unwrap_used, clippy::print_stdout, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use akunu_format::Gguf;
use akunu_tokenizer::{EncodeOptions, HfTokenizer, StreamDecoder, Tokenizer, from_gguf};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting accesses a thread-local number only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees the conditions of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn decoding_allocates_nothing(name: &str, tokenizer: &dyn Tokenizer) {
    let text = "Hello world, naïve 中文 🚀 e\u{301} \u{1f1e9}\u{1f1ea} ½\n".repeat(50);
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut ids = tokenizer.encode(&text, options).unwrap();
    // Ids that occur in no text, and ids that do not exist.
    ids.extend((0..3000).map(|id| id * 7));
    ids.push(u32::MAX);
    let mut out = String::with_capacity(1 << 20);
    let mut decoder = StreamDecoder::new();
    let before = COUNT.with(Cell::get);
    for &id in &ids {
        decoder.push(tokenizer, id, &mut out);
    }
    decoder.finish(&mut out);
    assert_eq!(COUNT.with(Cell::get) - before, 0, "{name}");
    assert!(out.contains("world"), "{name}");
}

#[test]
fn streaming_allocates_nothing_per_token() {
    let test = "streaming_allocates_nothing_per_token";
    let before = COUNT.with(Cell::get);
    drop(Box::new([0u8; 64]));
    assert!(COUNT.with(Cell::get) > before, "the counter counts");
    for name in ["gpt-2", "llama-spm", "bert-bge"] {
        let Some(path) = akunu_testing::data(test, &format!("vocab/{name}.gguf")) else { return };
        decoding_allocates_nothing(name, &from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap());
    }
    for name in ["gpt2", "llama2", "bert-base-uncased", "tiny/tiny_bpe_falcon_seq_tokenizer"] {
        let Some(path) = akunu_testing::data(test, &format!("tokenizers/{name}.json")) else { return };
        let tokenizer = HfTokenizer::open(&path).unwrap();
        decoding_allocates_nothing(name, &tokenizer);
    }
}
