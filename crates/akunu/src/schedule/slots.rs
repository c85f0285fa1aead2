//! Slots of the engine, and what requests share of the KV cache.

use std::ops::{Deref, DerefMut};

use super::active::Active;
use super::prefixes::Prefixes;
use super::request::Request;
use crate::blocks::{MIN_COPY, PoolFull};
use crate::{Engine, Error, Overflow, Session};

/// The session of a slot: owned by the scheduler, or borrowed for a single request.
#[derive(Debug)]
pub(super) enum SlotSession<'a> {
    Own(Session),
    Borrowed(&'a mut Session),
}

impl Deref for SlotSession<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            SlotSession::Own(session) => session,
            SlotSession::Borrowed(session) => session,
        }
    }
}

impl DerefMut for SlotSession<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        match self {
            SlotSession::Own(session) => session,
            SlotSession::Borrowed(session) => session,
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot<'a> {
    pub(super) session: SlotSession<'a>,
    pub(super) active: Option<Active<'a>>,
}

impl<'a> Slot<'a> {
    pub(super) fn new(session: Session) -> Slot<'a> {
        Slot { session: SlotSession::Own(session), active: None }
    }

    /// A slot in a borrowed session, with its only request.
    pub(super) fn borrowed(session: &'a mut Session, active: Active<'a>) -> Slot<'a> {
        Slot { session: SlotSession::Borrowed(session), active: Some(active) }
    }
}

/// Answers of at most so many tokens, and of half a context, have all their blocks promised when they are admitted. Others
/// grow.
const PROMISED: usize = 4096;

/// The most positions that are promised at a time to a text that grows: an eighth of a context, if that is less.
const GROWTH: usize = 512;

/// What a request may need of the KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// The most positions.
    positions: usize,
    /// Whether its context may be shifted. Others do not use its blocks until it ends, because shifting changes them.
    pub(super) shifts: bool,
    /// Positions that are promised at a time, if it gets its blocks as its text grows, and is paused while there are none.
    growth: Option<usize>,
    /// The most positions of which the blocks may be those of others: a shift replaces them by copies.
    shared: usize,
}

impl Need {
    pub(super) fn of(engine: &Engine, request: &Request) -> Need {
        let (context, cache) = (engine.context(), &engine.plan().cache);
        let most =
            request.options.max_tokens.map_or(context, |more| request.prompt.len().saturating_add(more));
        let shifts = matches!(request.options.overflow, Overflow::Shift { .. }) && most > context;
        let spare = cache.count - cache.slot_blocks;
        // With blocks for the contexts of all slots, there is always one for a copy.
        let is_whole = cache.count as usize == engine.plan().options.slots * cache.slot_blocks as usize;
        let shared = match request.prompt_logprobs {
            // Log probabilities are found where tokens are processed.
            Some(_) => 0,
            None if shifts && !is_whole => (spare * cache.block) as usize,
            None => usize::MAX,
        };
        let positions = most.min(context);
        let is_long = positions.saturating_sub(request.prompt.len()) > PROMISED.min(context / 2);
        let growth = (is_long && !shifts && !is_whole).then_some(GROWTH.min(context.div_ceil(8)));
        Need { positions, shifts, growth, shared }
    }

    pub(super) fn grows(self) -> bool {
        self.growth.is_some()
    }

    /// The positions that are promised to a text of `len` tokens.
    pub(super) fn promised(self, len: usize) -> usize {
        self.growth.map_or(self.positions, |growth| (len + growth).min(self.positions))
    }

    /// The tokens of a prompt whose keys and values it may take from others: not the last one, which must be processed.
    pub(super) fn reusable(self, prompt: &[u32]) -> &[u32] {
        &prompt[..(prompt.len() - 1).min(self.shared)]
    }

    /// Whether it shares only what it found when it was admitted: each further shared block would take one more for its copy.
    pub(super) fn is_settled(self) -> bool {
        self.shared != usize::MAX
    }

    /// Keeps all blocks available that the request may need for so many positions.
    pub(super) fn promise(self, session: &mut Session, positions: usize) -> Result<(), PoolFull> {
        let copies = if self.is_settled() { session.len() / session.pool.block() } else { 0 };
        session.promise(positions, copies)
    }
}

/// Gives a free slot the whole blocks of the longest known prefix of a request's prompt, and a promise of all others of the
/// first `positions`. False: there are not enough, until other requests end.
pub(super) fn make_room(session: &mut Session, request: &Request, need: Need, positions: usize) -> bool {
    session.adopt_whole(request.salt, need.reusable(&request.prompt));
    let has_room = need.promise(session, positions).is_ok();
    if !has_room {
        session.abandon();
    }
    has_room
}

/// Prepares a slot with the longest prefix of a prompt that is known by now, of a request that runs or has ended. Returns its
/// length.
pub(super) fn prepare_slot(
    engine: &mut Engine,
    slots: &mut [Slot<'_>],
    prefixes: &Prefixes,
    index: usize,
    active: &Active<'_>,
) -> Result<usize, Error> {
    if active.need.is_settled() {
        return Ok(slots[index].session.len());
    }
    let (prompt, salt) = (active.need.reusable(active.prompt()), active.salt);
    engine.bring_back(&mut slots[index].session, salt, prompt)?;
    let known = engine.known(salt, prompt).max(slots[index].session.len());
    let (most, from) = prefixes.longest(slots, active).unwrap_or((known, index));
    let rest = most % slots[index].session.pool.block();
    let most = if rest < MIN_COPY { slots[from].session.reach(most - rest) } else { most };
    match slots.get_disjoint_mut([from, index]) {
        Ok([from, to]) if most > known => {
            // Otherwise one list might replace a block by an equal one that is known, and the other keep it: what follows a
            // block could then outlive it.
            from.session.publish();
            engine.copy_prefix(&from.session, &mut to.session, most)?;
        }
        _ => engine.adopt(&mut slots[index].session, salt, prompt)?,
    }
    let session = &mut slots[index].session;
    active.need.promise(session, active.promised).map_err(|full| engine.out_of_blocks(full))?;
    session.salt = (!active.need.shifts).then_some(salt);
    Ok(session.len())
}
