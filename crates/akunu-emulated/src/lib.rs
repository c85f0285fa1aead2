//! A device without a GPU: runs the kernels of `akunu-kernels` as a GPU would, thread by thread, for tests.
//!
//! A C++ compiler (`CXX`, or `c++` on the path) builds a shared library from each function's text and the emulator's
//! header (`emulator/emulator.h`). It is slow, and designed to detect errors: threads that miss a barrier,
//! uninitialised memory, accesses past a buffer's end, misaligned loads, results that depend on the order of threads.

#![cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]

mod device;
mod library;
mod memory;
mod product;
mod queue;

pub use device::{EmulatedDevice, Emulator};
pub use library::{compiler, skipped};

#[cfg(test)]
mod tests;
