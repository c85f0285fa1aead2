//! The Akunu inference engine over HTTP.
//!
//! ```text
//! connection ─layers: refusals, keys, limits─▶ protocol module ─Job─▶ App::start ─Request─▶ engine's thread
//!                                              protocol module ◀─Output── Running ◀─Event──┘
//! ```
//!
//! Each loaded model has an engine on a thread of its own; tokio's threads only pass messages.
//!
//! # To add a protocol
//!
//! A protocol is a module with a [`Protocol`]: its paths and handlers, and the format of its errors. Add it to `protocol::PROTOCOLS`.
//! A handler takes a [`JsonBody`], reads it with [`Fields`], makes a [`Job`] from it, and passes that to [`App::start`]. Outputs are
//! collected from [`Running::next`], or streamed by [`stream::respond`] through a [`stream::Writer`]. Handlers return errors as a
//! [`Refusal`], which a middleware writes in the protocol's error format.
//!
//! ```text
//! async fn generate(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
//!     let fields = Fields::new(&body)?;
//!     let text = fields.text("prompt")?.unwrap_or_default().to_string();
//!     let job = Job::new(fields.text("model")?.map(str::to_string), Prompt::Text(text));
//!     let running = app.start(job, caller).await?;
//!     Ok(stream::respond(running, Lines::default()))      // impl stream::Writer for Lines
//! }
//! ```
//!
//! Start with `openai/`. Its `conversation_of` reads messages, tools and template variables in OpenAI's format.

mod anthropic;
mod app;
mod as_written;
mod blocking;
mod body;
mod connections;
mod error;
pub mod field_table;
mod fields;
mod fleet;
mod form;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guard;
mod guesses;
mod health;
mod job;
mod keys;
mod kv_events;
mod limits;
mod lm_studio;
mod local;
mod logged;
mod mcp;
mod memory;
mod metrics;
mod models;
mod multipart;
mod ollama;
mod openai;
mod origin;
mod outputs;
mod page;
mod prefill;
mod props;
mod protocol;
mod reasoning;
mod record;
mod refusal;
mod request_log;
mod rerank;
mod response_format;
mod samplers;
mod server;
mod slots;
mod speech;
mod start;
pub mod stream;
mod tei;
mod texts;
mod timestamp;
mod tls;
mod tools;
mod write_timeout;

pub use app::{App, Caller, Shared, json};
pub use body::JsonBody;
pub use error::ServeError;
pub use fields::Fields;
pub use guard::Cors;
pub use job::{
    AnswerPiece, Conversation, Ending, Finished, Job, Output, OutputEvent, Prompt, Running,
    SamplingOverrides, ToolCall,
};
pub use keys::Keys;
pub use kv_events::{Endpoint, KvEvents, KvEventsForm, KvEventsOptions};
pub use limits::{Limits, Rate};
pub use local::{Local, LocalAnswer, LocalEvent, Notify};
pub use mcp::McpServers;
pub use metrics::Metrics;
pub use models::{
    EMBEDDED, Finder, Kind, Lease, Loaded, ModelSpec, Models, ModelsOptions, OpenDevice, PARALLEL,
    SpeechCounts, SpeechQueue, TextCounts, TextQueue,
};
pub use protocol::{PROTOCOLS, Protocol};
pub use refusal::{Reason, Refusal};
pub use request_log::{LogFormat, RequestLog};
pub use response_format::RequestedFormat;
pub use server::{Options, Server, Signals};
pub use texts::{EmbedJob, Embedded, RankJob, Ranked, Score, TextInput};
pub use tls::TlsFiles;
