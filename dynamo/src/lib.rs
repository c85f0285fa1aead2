//! Akunu as a worker of NVIDIA Dynamo. `docs/dynamo.md` describes it for users.

mod answer;
mod engine;
mod error;
mod events;
pub mod folder;
mod request;
pub mod worker;

pub use engine::{Backend, Options};
