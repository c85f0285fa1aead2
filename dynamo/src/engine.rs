//! The engine as a worker of Dynamo: one model, its scheduler on a thread, and a stream for each request.

use std::collections::HashMap;
use std::hash::RandomState;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use akunu::schedule::{Event, Handle, OnEvent, Scheduler, SchedulerOptions, TokenLogprob};
use akunu::{Constraints, Engine, EngineOptions, FinishReason, Model};
use async_trait::async_trait;
use dynamo_backend_common::{
    AsyncEngineContext, DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine,
    LLMEngineOutput, LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use futures::stream::BoxStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::answer::Answer;
use crate::error::{internal, invalid, of_engine, of_refusal, shut_down};
use crate::events::{self, Publisher};
use crate::request::{self, Asked};

/// How often the end of the engine's thread is looked for when the worker ends.
const POLL: Duration = Duration::from_millis(10);

/// What a worker serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// `None`: the embedded model.
    pub model: Option<PathBuf>,
    /// The name for clients.
    pub name: String,
    pub engine: EngineOptions,
    pub scheduler: SchedulerOptions,
    /// How long requests may run on when the worker ends.
    pub drain: Duration,
}

impl Options {
    pub(crate) fn open(&self) -> Result<Model, akunu::Error> {
        match &self.model {
            Some(path) => Model::open(path),
            None => Model::embedded(),
        }
    }
}

/// A worker's engine, which is loaded when the worker starts.
pub struct Backend {
    options: Options,
    salts: RandomState,
    /// By the requests' ids.
    running: Arc<Running>,
    publisher: Publisher,
    loaded: Mutex<Option<Loaded>>,
    /// Publishes how full the cache is.
    watching: Arc<OnceLock<AbortHandle>>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct Served {
    handle: Handle,
    model: Arc<Model>,
    constraints: Constraints,
    context: usize,
}

#[derive(Debug)]
struct Loaded {
    served: Served,
    thread: JoinHandle<()>,
}

/// The flags that cancel requests.
#[derive(Debug, Default)]
struct Running(Mutex<HashMap<String, Arc<AtomicBool>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<AtomicBool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends its request when it is dropped: with the stream, however that ends.
#[derive(Debug)]
struct Guard {
    running: Arc<Running>,
    id: String,
    cancel: Arc<AtomicBool>,
}

impl Guard {
    fn new(running: &Arc<Running>, id: &str) -> Guard {
        let cancel = Arc::<AtomicBool>::default();
        running.lock().insert(id.to_string(), cancel.clone());
        Guard { running: running.clone(), id: id.to_string(), cancel }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        let mut running = self.running.lock();
        if running.get(&self.id).is_some_and(|cancel| Arc::ptr_eq(cancel, &self.cancel)) {
            running.remove(&self.id);
        }
    }
}

impl Backend {
    pub fn new(options: Options) -> Backend {
        Backend {
            options,
            salts: RandomState::new(),
            running: Arc::default(),
            publisher: Publisher::default(),
            loaded: Mutex::default(),
            watching: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self) -> Result<Served, DynamoError> {
        let served = self.lock().as_ref().map(|loaded| loaded.served.clone());
        served.ok_or_else(|| shut_down("the engine is not running"))
    }
}

/// Loads the model on a thread of its own, which then runs the scheduler.
fn load(options: &Options, publisher: &Publisher) -> Result<(Loaded, EngineConfig), DynamoError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (of_thread, publisher) = (options.clone(), publisher.clone());
    let run = move || match start(&of_thread, publisher) {
        Ok((scheduler, served, config)) => {
            if sender.send(Ok((served, config))).is_ok() {
                drop(scheduler.run());
            }
        }
        Err(error) => drop(sender.send(Err(error))),
    };
    let thread = std::thread::Builder::new().name("akunu-engine".into()).spawn(run);
    let thread =
        thread.map_err(|error| internal(format!("cannot start a thread for the engine: {error}")))?;
    let failed = || shut_down("the engine failed while it was being loaded");
    let (served, config) =
        receiver.recv().map_err(|_| failed())?.map_err(|error| shut_down(error.to_string()))?;
    Ok((Loaded { served, thread }, config))
}

fn start(options: &Options, publisher: Publisher) -> Result<(Scheduler, Served, EngineConfig), akunu::Error> {
    let model = Arc::new(options.open()?);
    let engine = Engine::new(model.clone(), &options.engine)?;
    for note in engine.notes() {
        tracing::info!("{note}");
    }
    let (plan, context) = (engine.plan(), engine.context());
    let (cache, rows) = (plan.cache, plan.tables.prefill().rows);
    let config = EngineConfig {
        model: options.name.clone(),
        llm: Some(LlmRegistration {
            context_length: u32::try_from(context).ok(),
            kv_cache_block_size: Some(cache.block),
            total_kv_blocks: Some(cache.count as u64),
            max_num_seqs: Some(plan.options.slots as u64),
            max_num_batched_tokens: Some(rows as u64),
            data_parallel_size: Some(1),
            ..LlmRegistration::default()
        }),
        ..EngineConfig::default()
    };
    let (mut scheduler, handle) = Scheduler::new(engine, &options.scheduler)?;
    scheduler.report_cache(Box::new(move |changes| events::publish(&publisher, changes, cache.block)));
    let constraints = Constraints::new(model.clone());
    Ok((scheduler, Served { handle, model, constraints, context }, config))
}

/// What the engine's thread sends of a request.
enum Sent {
    Piece(Vec<u32>, Vec<TokenLogprob>),
    Finished(akunu::schedule::Finished),
    Failed(akunu::Error),
}

fn listener(sender: UnboundedSender<Sent>) -> OnEvent {
    Box::new(move |event| {
        let sent = match event {
            Event::Started { .. } | Event::StepEnd => return ControlFlow::Continue(()),
            Event::Piece { ids, logprobs, .. } => Sent::Piece(ids.to_vec(), logprobs.to_vec()),
            Event::Finished(finished) => Sent::Finished(finished),
            Event::Failed(error) => Sent::Failed(error),
        };
        match sender.send(sent) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })
}

fn stream(
    mut receiver: UnboundedReceiver<Sent>,
    mut answer: Answer,
    guard: Guard,
    context: Arc<dyn AsyncEngineContext>,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(async_stream::stream! {
        let guard = guard;
        loop {
            let sent = tokio::select! {
                biased;
                () = context.stopped() => None,
                () = context.killed() => None,
                sent = receiver.recv() => Some(sent),
            };
            match sent {
                None => {
                    guard.cancel.store(true, Ordering::Relaxed);
                    yield Ok(answer.cancelled());
                    return;
                }
                Some(Some(Sent::Piece(ids, logprobs))) => yield Ok(answer.piece(ids, logprobs)),
                // By the worker's end, or by `abort` before this stream has seen the reason.
                Some(Some(Sent::Finished(finished))) if finished.finish == FinishReason::Cancelled => {
                    yield match guard.cancel.load(Ordering::Relaxed) {
                        true => Ok(answer.cancelled()),
                        false => Err(shut_down("the worker ended before the answer")),
                    };
                    return;
                }
                Some(Some(Sent::Finished(finished))) => {
                    yield Ok(answer.finished(finished));
                    return;
                }
                Some(Some(Sent::Failed(error))) => {
                    yield Err(of_engine(&error));
                    return;
                }
                Some(None) => {
                    yield Err(shut_down("the engine has failed"));
                    return;
                }
            }
        }
    })
}

#[async_trait]
impl LLMEngine for Backend {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (options, publisher) = (self.options.clone(), self.publisher.clone());
        let loading = tokio::task::spawn_blocking(move || load(&options, &publisher));
        let (loaded, config) = loading.await.map_err(|error| internal(error.to_string()))??;
        *self.lock() = Some(loaded);
        Ok(config)
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let served = self.served()?;
        let Asked { mut request, format, shown } =
            request::read(&request, &served.model, served.context, &self.salts)?;
        let guard = Guard::new(&self.running, context.id());
        request.options.cancel = Some(guard.cancel.clone());
        if let Some(format) = format {
            let (constraints, cancel) = (served.constraints.clone(), guard.cancel.clone());
            let compiled =
                tokio::task::spawn_blocking(move || constraints.get(&format, None, Some(&cancel))).await;
            let compiled = compiled.map_err(|error| internal(error.to_string()))?;
            request.options.constraint = Some(compiled.map_err(|error| of_engine(&error))?);
        }
        let answer = Answer::new(request.prompt.len(), &request.options, shown);
        akunu::check_prompt(&request.prompt, served.model.config().vocab_size, served.context)
            .map_err(|error| invalid(error.to_string()))?;
        let (sender, receiver) = unbounded_channel();
        served.handle.submit(request, listener(sender)).map_err(|refused| of_refusal(&refused))?;
        Ok(stream(receiver, answer, guard, context.inner_arc()))
    }

    async fn abort(&self, context: Arc<dyn AsyncEngineContext>) {
        if let Some(cancel) = self.running.lock().get(context.id()) {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    async fn is_quiescent(&self) -> Result<Option<bool>, DynamoError> {
        Ok(Some(self.running.lock().is_empty()))
    }

    /// Lets requests run on for a while, cancels the others, and frees the model.
    async fn cleanup(&self) -> Result<(), DynamoError> {
        if let Some(watching) = self.watching.get() {
            watching.abort();
        }
        let Some(Loaded { served, thread }) = self.lock().take() else { return Ok(()) };
        served.handle.close();
        let begin = Instant::now();
        while !thread.is_finished() {
            if begin.elapsed() >= self.options.drain {
                served.handle.stop();
            }
            tokio::time::sleep(POLL).await;
        }
        thread.join().map_err(|_| internal("the engine's thread has panicked"))
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let publisher = self.publisher.clone();
        let on_ready =
            Box::new(move |ready| publisher.set(ready).map_err(|_| internal("a second publisher")));
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: 0 }])
    }

    async fn setup_metrics(&self, _: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let (handle, watching) = (self.served()?.handle, self.watching.clone());
        let on_ready = Box::new(move |ready| {
            let task = tokio::spawn(events::watch(handle, ready));
            watching.set(task.abort_handle()).map_err(|_| internal("a second publisher"))
        });
        Ok(MetricsBindings { dp_ranks: vec![0], on_publisher_ready: Some(on_ready) })
    }
}
