//! Architectures are cards of `akunu-arch`; these are the names that the builder knows them by.

pub use akunu_arch::{CARDS as ARCHITECTURES, Card as ArchDescriptor, DefaultWindow, RopeStyle};
