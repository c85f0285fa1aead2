//! The environment variables that the C library reads: the same as the CLI's, because the C structs have no fields for the
//! options of backends.

use akunu::BackendOptions;

/// `AKUNU_ISA`, `AKUNU_CUDA`, `AKUNU_METAL`, `AKUNU_CUDA_PATH`, `AKUNU_CACHE`: the options of the backends.
pub(crate) fn backends() -> BackendOptions {
    BackendOptions::from_variables(|name| std::env::var_os(name))
}
