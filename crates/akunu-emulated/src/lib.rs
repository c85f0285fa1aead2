//! A device without a GPU: runs the kernels of `akunu-kernels` as a GPU would, thread by thread, to test them.
//!
//! A C++ compiler (`CXX`, or `c++` on the path) makes a shared library of each function's text and the emulator's header
//! (`emulator/emulator.h`). Slow, and made to find what is wrong: threads that miss a barrier, memory that was not written, accesses
//! past a buffer's end, loads that are not aligned, work that depends on the order of threads.

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
