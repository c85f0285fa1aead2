//! The counter-based generator behind sampling.
