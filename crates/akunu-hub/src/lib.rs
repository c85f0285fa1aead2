//! Models from the Hugging Face hub: `hf:OWNER/NAME[@REVISION][:FILE or QUANT]`, or a short name, becomes a path in the cache that every
//! Hugging Face tool shares. Blocking, without an async runtime.
//!
//! ```no_run
//! use akunu_hub::{Hub, Reference, Settings, Silent};
//!
//! let hub = Hub::new(Settings::from_variables(|name| std::env::var(name).ok())?);
//! let reference: Reference = "hf:OWNER/NAME:Q4_K_M".parse()?;
//! let pulled = hub.pull(&reference, &mut Silent)?;
//! println!("{}", pulled.path.display());
//! # Ok::<(), akunu_hub::Error>(())
//! ```

mod api;
mod cache;
mod choose;
mod date;
mod digest;
mod disk;
mod download;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod http;
mod hub;
mod listings;
mod lock;
mod models;
mod names;
mod reference;
mod settings;

pub use cache::{Cache, CachedFile, CachedRepo, CachedRevision, Removed};
pub use disk::{Disk, SystemDisk};
pub use error::Error;
pub use hub::{Hub, Observer, Pulled, Silent};
pub use models::CachedModel;
pub use names::{KNOWN, Known};
pub use reference::{PREFIX, Reference, Repo};
pub use settings::{ProxyVariable, RetryPolicy, Settings, Token};

pub type Result<T, E = Error> = std::result::Result<T, E>;
