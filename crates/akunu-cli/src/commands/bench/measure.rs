//! Runs a test and takes the time.

use std::time::{Duration, Instant};

use akunu::{Engine, Sampler, Sampling, Session};

use super::super::run::usual_sampling;
use super::test::{Kind, Test};
use crate::failure::Failure;

/// An engine, the sessions of its slots and the ids that all tests take.
pub struct Runner<'a> {
    pub engine: &'a mut Engine,
    sessions: Vec<Session>,
    ids: Vec<u32>,
}

impl<'a> Runner<'a> {
    /// `batch` sessions of at most `longest` tokens.
    pub fn new(engine: &'a mut Engine, batch: usize, longest: usize) -> Result<Runner<'a>, Failure> {
        let ids = super::super::random_ids(longest + 1, engine.vocab_size(), 42);
        let sessions = (0..batch).map(|_| engine.session()).collect::<Result<_, _>>()?;
        Ok(Runner { engine, sessions, ids })
    }

    pub fn run(&mut self, test: Test) -> Result<Duration, Failure> {
        self.stand_at(test)?;
        match (test.kind, test.batch, test.sampled) {
            (Kind::Prompt, ..) => self.prompt(test),
            (Kind::Generate, 1, false) => self.generate(test),
            (Kind::Generate, 1, true) => self.sample(test),
            (Kind::Generate, _, false) => self.generate_batch(test),
            (Kind::Generate, _, true) => self.sample_batch(test),
        }
    }

    fn prompt(&mut self, test: Test) -> Result<Duration, Failure> {
        let started = Instant::now();
        self.engine.prefill(&mut self.sessions[0], &self.ids[..test.depth + test.tokens])?;
        Ok(started.elapsed())
    }

    fn generate(&mut self, test: Test) -> Result<Duration, Failure> {
        let most = self.engine.plan().tables.decode.steps;
        let (mut token, mut left) = (self.ids[test.depth], test.tokens);
        let started = Instant::now();
        while left > 0 {
            let found = self.engine.decode(&mut self.sessions[0], token, left.min(most), &[], None)?;
            match found.last() {
                Some(&last) => token = last,
                None => return Err(Failure::new("the device decoded nothing")),
            }
            left -= found.len().min(left);
        }
        Ok(started.elapsed())
    }

    /// A sampler as `run` has it by default, and room for a test's tokens.
    fn sampler(&self, test: Test, seed: u64) -> Result<(Sampler, Vec<u32>), Failure> {
        let sampling = Sampling { seed, ..usual_sampling(self.engine.model()) };
        let mut history = Vec::with_capacity(test.depth + 1 + test.tokens);
        history.extend_from_slice(&self.ids[..test.depth + 1]);
        Ok((Sampler::new(&sampling, self.engine.vocab_size())?, history))
    }

    fn sample(&mut self, test: Test) -> Result<Duration, Failure> {
        let most = self.engine.plan().tables.decode.steps;
        let (mut sampler, mut history) = self.sampler(test, 1)?;
        let started = Instant::now();
        while history.len() <= test.depth + test.tokens {
            let steps = most.min(test.depth + test.tokens + 1 - history.len());
            let session = &mut self.sessions[0];
            let found = self.engine.decode_sampled(session, &mut sampler, &history, steps, &[], None)?;
            if found.is_empty() {
                return Err(Failure::new("the device decoded nothing"));
            }
            history.extend_from_slice(found);
        }
        Ok(started.elapsed())
    }

    fn sample_batch(&mut self, test: Test) -> Result<Duration, Failure> {
        let all = (0..test.batch as u64).map(|seed| self.sampler(test, seed));
        let (mut samplers, mut histories): (Vec<Sampler>, Vec<Vec<u32>>) =
            all.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let started = Instant::now();
        for _ in 0..test.tokens {
            let told: Vec<&[u32]> = histories.iter().map(Vec::as_slice).collect();
            let sessions = &mut self.sessions[..test.batch];
            let found = self.engine.sample_batch(sessions, &mut samplers, &told)?;
            histories.iter_mut().zip(found).for_each(|(history, &id)| history.push(id));
        }
        Ok(started.elapsed())
    }

    /// Each sequence starts with another token, so they go their own ways.
    fn generate_batch(&mut self, test: Test) -> Result<Duration, Failure> {
        let sessions = &mut self.sessions[..test.batch];
        let vocab = self.engine.vocab_size();
        let mut tokens: Vec<u32> = (0..test.batch).map(|i| (i * 7919 % vocab) as u32).collect();
        let started = Instant::now();
        for _ in 0..test.tokens {
            let found = self.engine.decode_batch(sessions, &tokens)?;
            tokens.copy_from_slice(found);
        }
        Ok(started.elapsed())
    }

    /// Brings the test's sessions to hold the first ids, whatever they held. What stands in the first is copied to the others.
    fn stand_at(&mut self, test: Test) -> Result<(), Failure> {
        let ids = &self.ids[..test.depth];
        let (first, others) = self.sessions.split_at_mut(1);
        if !first[0].tokens().starts_with(ids) {
            first[0].clear();
            self.engine.prefill(&mut first[0], ids)?;
        }
        first[0].truncate(ids.len());
        for session in &mut others[..test.batch - 1] {
            if !session.tokens().starts_with(ids) {
                self.engine.copy_prefix(&first[0], session, ids.len())?;
            }
            session.truncate(ids.len());
        }
        Ok(())
    }
}
