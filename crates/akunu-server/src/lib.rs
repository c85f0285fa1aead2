//! The Akunu inference engine over HTTP.
//!
//! ```text
//! connection ─layers: refusals, keys, limits─▶ protocol module ─Job─▶ App::start ─Request─▶ engine's thread
//!                                              protocol module ◀─Output── Running ◀─Event──┘
//! ```
//!
//! Engines have threads of their own, one for each loaded model; tokio's threads only hand on.
//!
//! # To add a protocol
//!
//! A protocol is a module with a [`Protocol`]: its paths with their handlers, which paths' errors it tells, and how. It gets a row in
//! `protocol::PROTOCOLS`. A handler takes [`JsonBody`], reads it with [`Fields`], makes a [`Job`] of it and gives that to [`App::start`].
//! What comes of it is either gathered from [`Running::next`] or streamed by [`stream::respond`] through a [`stream::Writer`]. An error
//! is a [`Refusal`], which handlers return as it is: the outermost layer writes it with the protocol's own `error`.
//!
//! ```text
//! async fn tell(State(app): State<App>, caller: Caller, JsonBody(body): JsonBody) -> Result<Response, Refusal> {
//!     let fields = Fields::new(&body)?;
//!     let text = fields.text("prompt")?.unwrap_or_default().to_string();
//!     let job = Job::new(fields.text("model")?.map(str::to_string), Prompt::Text(text));
//!     let running = app.start(job, caller).await?;
//!     Ok(stream::respond(running, Lines::default()))      // impl stream::Writer for Lines
//! }
//! ```
//!
//! `openai/` is the one to read first; its `conversation_of` reads messages, tools and variables of a request in OpenAI's form.

mod anthropic;
mod app;
mod body;
mod error;
mod fields;
mod guard;
mod health;
mod job;
mod keys;
mod limits;
mod metrics;
mod models;
mod ollama;
mod openai;
mod page;
mod protocol;
mod refusal;
mod rerank;
mod response_format;
mod server;
mod start;
pub mod stream;
mod tei;
mod texts;
mod tls;
mod tools;
mod write_timeout;

pub use app::{App, Caller, Shared, json};
pub use body::JsonBody;
pub use error::ServeError;
pub use fields::Fields;
pub use guard::Cors;
pub use job::{
    Conversation, Finished, Job, Output, Piece, Prompt, Running, SamplingOverrides, ToolCall, What,
};
pub use keys::Keys;
pub use limits::{Limits, Rate};
pub use metrics::Metrics;
pub use models::{
    Kind, Lease, Loaded, ModelSpec, Models, ModelsOptions, OpenDevice, PARALLEL, TextCounts, TextQueue,
};
pub use protocol::{PROTOCOLS, Protocol};
pub use refusal::{Reason, Refusal};
pub use response_format::RequestedFormat;
pub use server::{Options, Server};
pub use texts::{EmbedJob, Embedded, RankJob, Ranked, Score, TextInput};
pub use tls::TlsFiles;
