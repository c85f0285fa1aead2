//! Helpers that the tests of several crates share. It is a dev-dependency only and depends on no other crate of the
//! workspace, so unit tests can use it, too.

mod allocations;
mod cases;
mod clock;
mod data;
mod failing;
mod growth;

pub use allocations::{CountingAllocator, allocations};
pub use cases::{Cases, cases, few_or_many, fewest_or, left_to_ci, some_of};
pub use clock::thread_time;
pub use data::data;
pub use failing::{FailingAllocator, allocation_fails, allow_allocations, fail_allocations};
pub use growth::{Cost, MeasuringAllocator, TIMES, assert_growth};
