//! After warm-up, decoding allocates nothing: not for greedy, not for sampled, with penalties, stop strings and text.
//!
//! A program of its own: the allocator counts for the whole process, and a test harness allocates too when a test takes long.
#![allow(unsafe_code, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use akunu::{GenerateOptions, KvType, Sampling};
use common::{tales, tales_engine};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `ptr` came from `System` with this layout, and the rest is the caller's promise.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let sampled =
        Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.02, seed: 7, ..Default::default() };
    let cases = [
        ("greedy", Sampling::default(), vec![]),
        (
            "greedy with stop strings",
            Sampling::default(),
            vec!["no such text".to_string(), " the giraffe".to_string()],
        ),
        ("sampled", sampled.clone(), vec![]),
        ("whole distribution", Sampling { temperature: 1.0, ..Default::default() }, vec![]),
        ("top-p alone", Sampling { temperature: 1.2, top_p: 0.9, ..Default::default() }, vec![]),
        (
            "penalties and biases",
            Sampling {
                repeat_penalty: 1.1,
                frequency_penalty: 0.2,
                presence_penalty: 0.1,
                logit_bias: vec![(3, -1.0)],
                ..sampled
            },
            vec!["no such text".to_string()],
        ),
    ];
    let prompt = tales().encode("Once upon a time").unwrap();
    for kv in [KvType::F16, KvType::Q8_0] {
        for threads in [1, 2] {
            let mut engine = tales_engine(|o| (o.threads, o.kv) = (Some(threads), kv));
            for (name, sampling, stop_strings) in &cases {
                let options = GenerateOptions {
                    max_tokens: Some(100),
                    ignore_eos: true,
                    sampling: sampling.clone(),
                    stop_strings: stop_strings.clone(),
                    ..Default::default()
                };
                let mut session = engine.session().unwrap();
                let mut text = String::with_capacity(1 << 16);
                let mut counts = Vec::with_capacity(200);
                engine
                    .generate(&mut session, &prompt, &options, &mut |piece| {
                        text.push_str(piece.text);
                        counts.push((piece.ids.len(), ALLOCATIONS.load(Ordering::Relaxed)));
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                // The first steps may warm things up.
                let during = counts[counts.len() - 1].1 - counts[2].1;
                let tokens: usize = counts[3..].iter().map(|c| c.0).sum();
                assert!(tokens > 80, "{name}: {tokens} tokens");
                assert_eq!(during, 0, "{name}, {threads} threads, KV {}: {during} allocations", kv.name());
            }
        }
    }
}
