//! The one place where the C library reads environment variables. A program that loads it sets them as users of `akunu` do, for
//! the C structures have no fields for the backends.

use akunu::BackendOptions;

/// `AKUNU_ISA`, `AKUNU_CUDA`, `AKUNU_METAL`, `AKUNU_CUDA_PATH`, `AKUNU_CACHE`: how devices run.
pub(crate) fn backends() -> BackendOptions {
    BackendOptions::from_variables(|name| std::env::var_os(name))
}
