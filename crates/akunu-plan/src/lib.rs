//! What to compute: dispatch tables, the architectures they are built from, the memory they need, the
//! [`Device`] that replays them, and the reference device that every other one is checked against.

pub mod arch;
pub mod buffer;
mod build;
mod cost;
pub mod device;
mod extents;
pub mod halves;
pub mod kernel;
pub mod keys;
pub mod load;
pub mod mock;
pub mod params;
pub mod plan;
mod print;
pub mod q8;
pub mod random;
pub mod reference;
pub mod rope;
pub mod row;
pub mod sample;
pub mod table;
pub mod verify;

pub use akunu_arch::Activation;
pub use akunu_format::DType;
pub use arch::{ArchDescriptor, RopeStyle};
pub use buffer::{BufferId, BufferKind, BufferSpec};
pub use cost::Cost;
pub use device::{
    Capabilities, Device, DeviceBuffer, DeviceError, DriverMemory, InPlace, Outcome, ReplayId, Submission,
};
pub use extents::extents;
pub use kernel::{Access, Content, Kernel, KvType, MatmulForm, NormOut, Rope, RowSet};
pub use keys::KeyOrder;
pub use load::{Loaded, LoadedSampled, load};
pub use plan::{MemoryPlan, ModelPlan, PlanError, PlanOptions, SampledTables, Tables, plan};
pub use row::Row;
pub use table::{
    Binding, CommandBuilder, DispatchCommand, DispatchTable, Patch, RowBounds, RowMeaning, TableIo,
};
