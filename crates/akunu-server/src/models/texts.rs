//! The thread of an embedding or reranking model. Texts of all waiting requests are batched.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use akunu::schedule::Refused;
use akunu::{EmbedTask, Embedder, Error, TextIds};
use tokio::sync::oneshot;

use crate::refusal::Refusal;

/// The result of each text, in the request's order: an unnormalised vector, or a score.
pub(crate) type Answer = Result<Vec<Vec<f32>>, Refusal>;

/// The queue of an embedder's thread, which ends when the queue is dropped.
#[derive(Debug)]
pub struct TextQueue {
    requests: Sender<TextRequest>,
    counts: Arc<TextCounts>,
    /// Maximum number of waiting requests.
    capacity: usize,
    longest: usize,
    width: usize,
}

/// Counters of an embedder since it was loaded.
#[derive(Debug, Default)]
pub struct TextCounts {
    waiting: Arc<AtomicUsize>,
    texts: AtomicU64,
    tokens: AtomicU64,
    batches: AtomicU64,
}

impl TextCounts {
    /// Requests that are waiting or being processed.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn texts(&self) -> u64 {
        self.texts.load(Ordering::Relaxed)
    }

    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Batches that were run.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }
}

/// Counts a request as waiting until it is dropped.
#[derive(Debug)]
pub(super) struct WaitingGuard(Arc<AtomicUsize>);

impl WaitingGuard {
    pub(super) fn new(waiting: &Arc<AtomicUsize>) -> WaitingGuard {
        waiting.fetch_add(1, Ordering::Relaxed);
        WaitingGuard(waiting.clone())
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct TextRequest {
    /// Texts that are not processed yet.
    pending: VecDeque<TextIds>,
    results: Vec<Vec<f32>>,
    answer: oneshot::Sender<Answer>,
    _waiting: WaitingGuard,
}

impl TextQueue {
    /// The queue and its worker.
    pub(super) fn new(embedder: Embedder, task: EmbedTask, capacity: usize) -> (TextQueue, TextWorker) {
        let (sender, receiver) = channel();
        let counts = Arc::<TextCounts>::default();
        let queue = TextQueue {
            requests: sender,
            counts: counts.clone(),
            capacity,
            longest: embedder.longest(),
            width: embedder.width(),
        };
        (queue, TextWorker { embedder, task, requests: receiver, waiting: VecDeque::new(), counts })
    }

    /// Queues texts. Dropping the receiver cancels those that are not being processed yet.
    pub(crate) fn submit(&self, texts: Vec<TextIds>) -> Result<oneshot::Receiver<Answer>, Refused> {
        let waiting = self.counts.waiting();
        if waiting >= self.capacity {
            return Err(Refused::QueueFull { waiting });
        }
        let (answer, receiver) = oneshot::channel();
        let results = Vec::with_capacity(texts.len());
        let waiting = WaitingGuard::new(&self.counts.waiting);
        let request = TextRequest { pending: texts.into(), results, answer, _waiting: waiting };
        self.requests.send(request).map_err(|_| Refused::Closed)?;
        Ok(receiver)
    }

    pub fn counts(&self) -> &TextCounts {
        &self.counts
    }

    /// Maximum tokens of a text.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Dimensions of a vector.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// The embedder and its requests, on the embedder's thread.
#[derive(Debug)]
pub(super) struct TextWorker {
    embedder: Embedder,
    task: EmbedTask,
    requests: Receiver<TextRequest>,
    waiting: VecDeque<TextRequest>,
    counts: Arc<TextCounts>,
}

impl TextWorker {
    /// Processes requests until the queue is dropped.
    pub(super) fn run(mut self) {
        loop {
            if self.waiting.is_empty() {
                let Ok(request) = self.requests.recv() else { return };
                self.accept(request);
            }
            while let Ok(request) = self.requests.try_recv() {
                self.accept(request);
            }
            self.waiting.retain(|request| !request.answer.is_closed());
            self.run_batch();
        }
    }

    /// Refuses requests with invalid texts, which would fail the whole batch.
    fn accept(&mut self, request: TextRequest) {
        let check = |(index, text): (usize, &TextIds)| {
            self.embedder.check(text, index).map_err(|error| refusal(error, index))
        };
        match request.pending.iter().enumerate().try_for_each(check) {
            Ok(()) => self.waiting.push_back(request),
            Err(refusal) => drop(request.answer.send(Err(refusal))),
        }
    }

    /// Runs texts of waiting requests, oldest first, up to the tokens of one pass. A request with more moves to the end of the
    /// queue, so that it does not delay the others.
    fn run_batch(&mut self) {
        let max_tokens = self.embedder.plan().options.rows;
        let (mut texts, mut tokens) = (Vec::new(), 0);
        let mut text_counts: Vec<usize> = Vec::new();
        for request in &mut self.waiting {
            let before = texts.len();
            while let Some(text) = request.pending.pop_front() {
                if tokens > 0 && tokens + text.ids.len() > max_tokens {
                    request.pending.push_front(text);
                    break;
                }
                tokens += text.ids.len();
                texts.push(text);
            }
            // A request of which no text fits stays at the front of the queue.
            if texts.len() > before || request.pending.is_empty() {
                text_counts.push(texts.len() - before);
            }
            if !request.pending.is_empty() {
                break;
            }
        }
        if texts.is_empty() {
            return;
        }
        let encoded = self.encode(&texts);
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
        if encoded.is_ok() {
            self.counts.texts.fetch_add(texts.len() as u64, Ordering::Relaxed);
            self.counts.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        }
        let mut encoded = encoded.map(Vec::into_iter).map_err(Refusal::from);
        let batch: Vec<TextRequest> = self.waiting.drain(..text_counts.len()).collect();
        for (mut request, count) in batch.into_iter().zip(text_counts) {
            match &mut encoded {
                Ok(results) => request.results.extend(results.take(count)),
                Err(refusal) => {
                    let _ = request.answer.send(Err(refusal.clone()));
                    continue;
                }
            }
            match request.pending.is_empty() {
                true => drop(request.answer.send(Ok(request.results))),
                false => self.waiting.push_back(request),
            }
        }
    }

    fn encode(&mut self, texts: &[TextIds]) -> Result<Vec<Vec<f32>>, Error> {
        match self.task {
            EmbedTask::Vectors(_) => self.embedder.encode(texts),
            EmbedTask::Scores => {
                let scores = self.embedder.scores(texts)?;
                Ok(scores.into_iter().map(|score| vec![score]).collect())
            }
        }
    }
}

/// An error that names the text by its index.
fn refusal(error: Error, index: usize) -> Refusal {
    match error {
        // Some clients tokenize texts with the vocabulary of another model.
        Error::TokenOutsideVocabulary { id, vocab, .. } => Refusal::invalid(format!(
            "text number {} has the token id {id}, and this model's vocabulary has {vocab} ids; send ids of this \
             vocabulary, or the text itself",
            index + 1
        ))
        .code("invalid_value"),
        error => error.into(),
    }
}
