//! The thread of a model that makes vectors or scores: the texts of all requests that wait share its passes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use akunu::schedule::Refused;
use akunu::{EmbedTask, Embedder, Error, TextIds};
use tokio::sync::oneshot;

use crate::refusal::Refusal;

/// Tokens of one turn, unless its only text has more. A request with more of them goes to the queue's end, so that it
/// does not keep others waiting for long.
const TURN: usize = 4096;

/// What each text became, in the request's order: a vector as the model leaves it, or a score.
pub(crate) type Answer = Result<Vec<Vec<f32>>, Refusal>;

/// Requests for an embedder's thread, which ends when this is dropped.
#[derive(Debug)]
pub struct TextQueue {
    requests: Sender<TextRequest>,
    counts: Arc<TextCounts>,
    /// Requests that may wait.
    most: usize,
    longest: usize,
    width: usize,
}

/// What an embedder has done since it was loaded.
#[derive(Debug, Default)]
pub struct TextCounts {
    waiting: AtomicUsize,
    texts: AtomicU64,
    tokens: AtomicU64,
    turns: AtomicU64,
}

impl TextCounts {
    /// Requests that wait or are in a pass.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn texts(&self) -> u64 {
        self.texts.load(Ordering::Relaxed)
    }

    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Calls of the embedder, each for the texts of any number of requests.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

/// Counts a request from its arrival to its end, however it ends.
#[derive(Debug)]
struct Waiting(Arc<TextCounts>);

impl Waiting {
    fn begin(counts: &Arc<TextCounts>) -> Waiting {
        counts.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(counts.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct TextRequest {
    /// Texts that no pass has taken yet.
    left: VecDeque<TextIds>,
    results: Vec<Vec<f32>>,
    answer: oneshot::Sender<Answer>,
    _waiting: Waiting,
}

impl TextQueue {
    /// The queue, and the embedder's side of it.
    pub(super) fn new(embedder: Embedder, task: EmbedTask, most: usize) -> (TextQueue, TextWorker) {
        let (sender, receiver) = channel();
        let counts = Arc::<TextCounts>::default();
        let queue = TextQueue {
            requests: sender,
            counts: counts.clone(),
            most,
            longest: embedder.longest(),
            width: embedder.width(),
        };
        (queue, TextWorker { embedder, task, requests: receiver, waiting: VecDeque::new(), counts })
    }

    /// Puts texts into the queue. Dropping the receiver cancels what is not in a pass yet.
    pub(crate) fn submit(&self, texts: Vec<TextIds>) -> Result<oneshot::Receiver<Answer>, Refused> {
        let waiting = self.counts.waiting();
        if waiting >= self.most {
            return Err(Refused::QueueFull { waiting });
        }
        let (answer, receiver) = oneshot::channel();
        let results = Vec::with_capacity(texts.len());
        let waiting = Waiting::begin(&self.counts);
        let request = TextRequest { left: texts.into(), results, answer, _waiting: waiting };
        self.requests.send(request).map_err(|_| Refused::Closed)?;
        Ok(receiver)
    }

    pub fn counts(&self) -> &TextCounts {
        &self.counts
    }

    /// Tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// The embedder, on its thread.
#[derive(Debug)]
pub(super) struct TextWorker {
    embedder: Embedder,
    task: EmbedTask,
    requests: Receiver<TextRequest>,
    waiting: VecDeque<TextRequest>,
    counts: Arc<TextCounts>,
}

impl TextWorker {
    /// Answers requests until the queue is dropped.
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
            self.turn();
        }
    }

    /// Refuses texts that no pass can take, so that they fail no other request.
    fn accept(&mut self, request: TextRequest) {
        let check = |(index, text): (usize, &TextIds)| {
            self.embedder.check(text, index).map_err(|error| refusal(error, index))
        };
        match request.left.iter().enumerate().try_for_each(check) {
            Ok(()) => self.waiting.push_back(request),
            Err(refusal) => drop(request.answer.send(Err(refusal))),
        }
    }

    /// Takes texts of waiting requests, oldest first, into one call of the embedder.
    fn turn(&mut self) {
        let (mut texts, mut tokens) = (Vec::new(), 0);
        let mut shares: Vec<usize> = Vec::new();
        for request in &mut self.waiting {
            let before = texts.len();
            while let Some(text) = request.left.pop_front() {
                if tokens > 0 && tokens + text.ids.len() > TURN {
                    request.left.push_front(text);
                    break;
                }
                tokens += text.ids.len();
                texts.push(text);
            }
            shares.push(texts.len() - before);
            if !request.left.is_empty() {
                break;
            }
        }
        if texts.is_empty() {
            return;
        }
        let found = self.encode(&texts);
        self.counts.turns.fetch_add(1, Ordering::Relaxed);
        if found.is_ok() {
            self.counts.texts.fetch_add(texts.len() as u64, Ordering::Relaxed);
            self.counts.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        }
        let mut found = found.map(Vec::into_iter).map_err(Refusal::from);
        let took_part: Vec<TextRequest> = self.waiting.drain(..shares.len()).collect();
        for (mut request, share) in took_part.into_iter().zip(shares) {
            match &mut found {
                Ok(results) => request.results.extend(results.take(share)),
                Err(refusal) => {
                    let _ = request.answer.send(Err(refusal.clone()));
                    continue;
                }
            }
            match request.left.is_empty() {
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

/// An error with the text that it is about.
fn refusal(error: Error, index: usize) -> Refusal {
    match error {
        // Clients that count with another model's vocabulary send such ids unasked.
        Error::TokenOutsideVocabulary { id, vocab, .. } => Refusal::invalid(format!(
            "text number {} has the token id {id}, and this model's vocabulary has {vocab}, from 0 on; send ids of this \
             vocabulary, or the text itself",
            index + 1
        ))
        .code("invalid_value"),
        error => error.into(),
    }
}
