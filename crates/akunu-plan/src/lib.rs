//! Dispatch tables, their construction from architectures, the memory that they need, the [`Device`] that replays them,
//! and the reference device that all others are tested against.

pub mod blocks;
pub mod buffer;
mod cost;
pub mod device;
pub mod eights;
pub mod entries;
pub mod group;
pub mod halves;
mod inputs;
pub mod keys;
pub mod load;
mod lower;
pub mod mock;
pub mod ops;
mod paging;
pub mod passes;
pub mod plan;
mod print;
pub mod q8;
pub mod random;
pub mod reference;
pub mod rope;
mod routed;
pub mod row;
pub mod sample;
mod shard;
pub mod state;
pub mod table;
mod text_pass;
mod variants;
pub mod verify;

pub use akunu_arch::{Activation, GroupRank, ScaledBy, Scores};
pub use akunu_arch::{CARDS, Card, NormKind, RopeStyle};
pub use akunu_format::DType;
pub use buffer::{BufferId, BufferKind, BufferSpec, Home};
pub use cost::Cost;
pub(crate) use cost::{position_bytes, row_bytes};
pub use device::{
    Capabilities, Device, DeviceBuffer, DeviceError, DriverMemory, FewRows, InPlace, Outcome, PackedRows,
    ReplayId, Strips, Submission,
};
pub use entries::{Entries, EntryBounds, Move, MoveBounds, MoveKind, RowBounds};
pub use group::{Broken, ExchangeParts, Group, Health, Member};
pub use inputs::{ProductInput, SortedRows, product_inputs};
pub use keys::KeyOrder;
pub use load::{Loaded, OnLoad, load, load_buffers, unwatched};
pub use lower::{CacheSizes, MOST_STAGES, check_host, even_stages, layer_of};
pub use ops::{Access, Content, Kernel, RowSet};
pub use paging::{ExpertPart, GROUPS, PagedLayer, PagedWeight, Paging, SlotPool};
pub use passes::{PassKind, Passes, Tables};
pub use plan::{
    CachePlan, EncodeOptions, EncodeOutput, EncodePlan, MemoryPlan, ModelPlan, OnHost, PlanError,
    PlanOptions, WindowPlan, plan, plan_encoder,
};
pub use routed::{ExpertReads, ExpertSet, RoutedCommands};
pub use row::Row;
pub use shard::Cut;
pub use table::{Binding, DispatchCommand, DispatchTable, Loan, Side, Streams, TableIo, extents};
pub use text_pass::TextPass;
pub use variants::{KvType, MatmulForm, OutputForms, Rope};
pub(crate) use variants::{activation_name, lower_name, norm_name};
