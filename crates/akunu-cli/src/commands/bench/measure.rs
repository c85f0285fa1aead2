//! Runs and times a test.

use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use akunu::schedule::{Event, Handle, Request, Scheduler, SchedulerOptions};
use akunu::{Constraint, Engine, ExpertReads, GenerateOptions, Sampler, Sampling, Session};

use super::super::run::default_sampling;
use super::test::{Kind, Sampled, Test};
use crate::failure::Failure;

/// While prompts are processed there are no running streams that could stall. With such a long bound, all prompts of a
/// test end in the same pass.
const NO_STALL: Duration = Duration::from_secs(3600);

/// A run of a test.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub time: Duration,
    /// What it has read of experts, where that is counted.
    pub reads: Option<ExpertReads>,
}

impl Run {
    /// Times and counts what is done with an engine.
    fn of(
        engine: &mut Engine,
        work: impl FnOnce(&mut Engine) -> Result<(), Failure>,
    ) -> Result<Run, Failure> {
        let before = engine.device().expert_reads();
        let started = Instant::now();
        work(engine)?;
        let time = started.elapsed();
        Ok(Run { time, reads: between(before, engine.device().expert_reads()) })
    }
}

fn between(before: Option<ExpertReads>, after: Option<ExpertReads>) -> Option<ExpertReads> {
    Some(after? - before?)
}

/// An engine in the state that a test needs, and the token ids that all tests use.
#[derive(Debug)]
pub struct Runner {
    state: State,
    /// Number of sequences of the largest batch.
    batch: usize,
    ids: Vec<u32>,
    /// Of constrained tests.
    constraint: Option<Arc<Constraint>>,
}

#[derive(Debug)]
enum State {
    /// For prompts and a single sequence.
    Alone(Box<Engine>, Session),
    /// For several sequences at once.
    Together(Box<Scheduler>, Handle),
    /// During a change between the two, and after a failure.
    Nothing,
}

impl Runner {
    /// For up to `batch` sequences of at most `longest` tokens.
    pub fn new(
        mut engine: Engine,
        batch: usize,
        longest: usize,
        constraint: Option<Arc<Constraint>>,
    ) -> Result<Runner, Failure> {
        let ids = super::super::random_ids(longest + 1, engine.vocab_size(), 42);
        let session = engine.session()?;
        Ok(Runner { state: State::Alone(Box::new(engine), session), batch, ids, constraint })
    }

    pub fn engine(&self) -> Result<&Engine, Failure> {
        match &self.state {
            State::Alone(engine, _) => Ok(engine),
            State::Together(scheduler, _) => Ok(scheduler.engine()),
            State::Nothing => Err(Failure::new("the engine was lost in an earlier failure")),
        }
    }

    pub fn run(&mut self, test: Test) -> Result<Run, Failure> {
        match (test.kind, test.batch) {
            (Kind::Prompt, _) => self.prompt(test),
            (Kind::Generate, 1) if !test.constrained => self.generate(test),
            (Kind::Generate, _) => self.generate_together(test),
        }
    }

    /// The engine and a session whose cache contains the test's first ids.
    fn alone(&mut self, test: Test) -> Result<(&mut Engine, &mut Session, &[u32]), Failure> {
        self.state = match std::mem::replace(&mut self.state, State::Nothing) {
            State::Together(scheduler, handle) => {
                handle.close();
                let mut engine = scheduler.run();
                let session = engine.session()?;
                State::Alone(Box::new(engine), session)
            }
            state => state,
        };
        let State::Alone(engine, session) = &mut self.state else {
            return Err(Failure::new("the engine was lost in an earlier failure"));
        };
        let ids = &self.ids[..test.depth];
        session.truncate(ids.len());
        if session.tokens() != ids {
            session.clear();
            engine.prefill(session, ids)?;
        }
        Ok((engine, session, &self.ids))
    }

    /// The scheduler of a batch, and the handle for its requests.
    fn together(&mut self) -> Result<(&mut Scheduler, &Handle), Failure> {
        self.state = match std::mem::replace(&mut self.state, State::Nothing) {
            State::Alone(engine, session) => {
                drop(session);
                let options = SchedulerOptions {
                    queue: self.batch,
                    stall: Some(NO_STALL),
                    ..SchedulerOptions::default()
                };
                let (scheduler, handle) = Scheduler::new(*engine, &options)?;
                State::Together(Box::new(scheduler), handle)
            }
            state => state,
        };
        match &mut self.state {
            State::Together(scheduler, handle) => Ok((scheduler, handle)),
            _ => Err(Failure::new("the engine was lost in an earlier failure")),
        }
    }

    fn prompt(&mut self, test: Test) -> Result<Run, Failure> {
        let (engine, session, ids) = self.alone(test)?;
        Run::of(engine, |engine| {
            engine.prefill(session, &ids[..test.depth + test.tokens])?;
            Ok(())
        })
    }

    /// Generates one sequence in chains, limited by the device and by the engine's time limit.
    fn generate(&mut self, test: Test) -> Result<Run, Failure> {
        let (engine, session, ids) = self.alone(test)?;
        let most = engine.plan().tables.decode().steps;
        let mut sampler = match test.sampled {
            Some(how) => Some(Sampler::new(&sampling(engine, how, 1), engine.vocab_size())?),
            None => None,
        };
        let mut history = Vec::with_capacity(test.depth + 1 + test.tokens);
        history.extend_from_slice(&ids[..test.depth + 1]);
        Run::of(engine, |engine| {
            while history.len() <= test.depth + test.tokens {
                let left = test.depth + test.tokens + 1 - history.len();
                let steps = most.min(left).min(engine.chain_limit());
                let found = engine.chain(session, &history, sampler.as_mut(), steps, &[], None)?;
                if found.is_empty() {
                    return Err(Failure::new("the device generated no tokens"));
                }
                history.extend_from_slice(found);
            }
            Ok(())
        })
    }

    /// Runs one request per sequence through the same scheduler as `serve`. Timed from the pass that processes the ends
    /// of the prompts to the last tokens. Each sequence starts with a different token, so their texts differ.
    fn generate_together(&mut self, test: Test) -> Result<Run, Failure> {
        let before = test.depth.saturating_sub(1);
        let shared = self.ids[..before].to_vec();
        let constraint = self.constraint.clone().filter(|_| test.constrained);
        let (scheduler, handle) = self.together()?;
        let vocab = scheduler.engine().vocab_size();
        let (sender, receiver) = mpsc::channel();
        for sequence in 0..test.batch {
            let mut prompt = shared.clone();
            prompt.push((sequence * 7919 % vocab) as u32);
            let options = GenerateOptions {
                // The first token is computed in the prompt's last pass.
                max_tokens: Some(test.tokens + 1),
                ignore_eos: true,
                constraint: constraint.clone(),
                sampling: match test.sampled {
                    Some(how) => sampling(scheduler.engine(), how, sequence as u64),
                    None => Sampling::default(),
                },
                ..GenerateOptions::default()
            };
            let sender = sender.clone();
            let on_event = move |event: Event<'_>| {
                // The receiver outlives all senders.
                let _ = match event {
                    Event::Finished(finished) => sender.send(Ok(finished.timings)),
                    Event::Failed(error) => sender.send(Err(error)),
                    Event::Started { .. } | Event::Piece { .. } | Event::StepEnd => Ok(()),
                };
                ControlFlow::Continue(())
            };
            let request = Request { prompt, options, ..Request::default() };
            let submitted = handle.submit(request, Box::new(on_event));
            submitted.map_err(|refused| Failure::new(refused.to_string()))?;
        }
        drop(sender);
        let counted = scheduler.engine().device().expert_reads();
        scheduler.drain();
        let reads = between(counted, scheduler.engine().device().expert_reads());
        let mut seconds = 0f64;
        for timings in receiver {
            let timings = timings?;
            if timings.generated_tokens != test.tokens + 1 {
                let hint = "a constrained answer must be able to reach the length of the test (-n)";
                return Err(Failure::new("a sequence ended too early").hint(hint));
            }
            seconds = seconds.max(timings.generate_s);
        }
        // Cached tokens are processed in passes that are not timed.
        let reads = reads.filter(|_| test.depth <= 1).map(|reads| without_a_pass(reads, test.tokens as u64));
        Ok(Run { time: Duration::from_secs_f64(seconds), reads })
    }
}

/// Counts of `passes` and one more, the pass of the prompts, without one of them.
fn without_a_pass(reads: ExpertReads, passes: u64) -> ExpertReads {
    let part = |count: u64| (u128::from(count) * u128::from(passes) / u128::from(passes + 1)) as u64;
    let ExpertReads { bytes, uncounted, hits, misses, file_bytes } = reads;
    let [bytes, hits, misses, file_bytes] = [bytes, hits, misses, file_bytes].map(part);
    ExpertReads { bytes, uncounted, hits, misses, file_bytes }
}

fn sampling(engine: &Engine, how: Sampled, seed: u64) -> Sampling {
    let sampling = match how {
        Sampled::Served => Sampling { temperature: 0.8, ..Sampling::default() },
        Sampled::Run => default_sampling(engine.model()),
    };
    Sampling { seed, ..sampling }
}
