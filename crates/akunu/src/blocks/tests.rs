//! A model of the cache: what is written to each position, and what each sequence must find in it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use super::pool::Parent;
use super::{BlockCopy, BlockList, BlockPool, CacheEvent, MIN_COPY, PoolFull, common};

/// Numbers from 0 to `below`.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// What a position contains: the salt and all tokens up to it, as keys and values depend on them.
type Cell = (u64, Vec<u32>);

struct Cache {
    pool: BlockPool,
    cells: HashMap<(u32, usize), Cell>,
    /// The same of sliding-window layers, and the positions that a row sees there.
    windows: HashMap<(u32, usize), Cell>,
    window: Option<usize>,
    /// After which tokens the state in each slot is, if layers have states.
    states: Option<HashMap<u32, Cell>>,
    /// What a reader of events knows: blocks by their hashes.
    reader: HashMap<u64, Known>,
}

/// A block's parent and its tokens.
type Known = (Option<u64>, Vec<u32>);

#[derive(Default)]
struct Sequence {
    salt: u64,
    tokens: Vec<u32>,
    list: BlockList,
    /// Blocks that it may have.
    most: usize,
}

impl Cache {
    fn new(count: usize, positions: usize) -> Cache {
        let mut pool = BlockPool::new(count, positions);
        pool.log_events();
        let (cells, windows, reader) = (HashMap::new(), HashMap::new(), HashMap::new());
        Cache { pool, cells, windows, window: None, states: None, reader }
    }

    /// With `windows` blocks for layers of which a row sees `window` positions.
    fn with_windows(self, windows: usize, window: usize) -> Cache {
        Cache { pool: self.pool.with_windows(windows, window, false), window: Some(window), ..self }
    }

    /// With slots for the states of so many sequences, of which a pass has rows of at most five blocks.
    fn with_states(self, sequences: usize) -> Cache {
        let pool = self.pool.with_windows(2 * sequences + 5, 2, true);
        Cache { pool, states: Some(HashMap::new()), ..self }
    }

    fn copy(&mut self, copy: Option<BlockCopy>) {
        if let Some(BlockCopy { from, to, len, windows }) = copy {
            for at in 0..len {
                let cell = self.cells.get(&(from, at)).cloned();
                self.cells.insert((to, at), cell.unwrap());
                if let Some([from, to]) = windows {
                    // What no row sees any more may never have been there.
                    let cell = self.windows.get(&(from, at)).cloned();
                    cell.map(|cell| self.windows.insert((to, at), cell));
                }
            }
            assert_eq!(windows.is_some(), self.window.is_some());
        }
    }

    /// Begins a sequence with a prompt, of which what is known is not computed. `most`: blocks that are promised.
    fn begin(&mut self, salt: u64, prompt: &[u32], most: usize) -> Result<(Sequence, usize), PoolFull> {
        let mut sequence = Sequence { salt, most, ..Sequence::default() };
        let (reused, copy) = sequence.list.adopt(&mut self.pool, salt, &prompt[..prompt.len() - 1]);
        self.copy(copy);
        if let Err(full) = sequence.list.promise(&mut self.pool, most) {
            sequence.list.clear(&mut self.pool);
            return Err(full);
        }
        sequence.tokens.extend(&prompt[..reused]);
        self.check(&sequence);
        self.extend(&mut sequence, &prompt[reused..]).unwrap();
        Ok((sequence, reused))
    }

    fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), PoolFull> {
        let Sequence { salt, list, .. } = sequence;
        let before = sequence.tokens.len();
        let copy = list.reserve(&mut self.pool, before, tokens.len())?;
        self.copy(copy);
        for &token in tokens {
            let at = sequence.tokens.len();
            sequence.tokens.push(token);
            let size = self.pool.positions();
            let block = sequence.list.ids()[at / size];
            assert!(!self.pool.is_shared(block), "a block that others use is written");
            self.cells.insert((block, at % size), (*salt, sequence.tokens.clone()));
            if let Some(states) = &mut self.states {
                let slot = |at: usize| sequence.list.windows()[at / size].id;
                if at > 0 {
                    assert_eq!(states[&slot(at - 1)], (*salt, sequence.tokens[..at].to_vec()), "{at}");
                }
                states.insert(slot(at), (*salt, sequence.tokens.clone()));
            }
            if self.window.is_some() {
                let block = sequence.list.windows()[at / size];
                self.windows.insert((block.id, at % size), (*salt, sequence.tokens.clone()));
            }
        }
        // All that a row of this pass sees was there until now.
        self.check_windows(sequence, before);
        sequence.list.set_state(sequence.tokens.len());
        sequence.list.slide(&mut self.pool, sequence.tokens.len());
        Ok(())
    }

    /// Of sliding-window layers, all that the row after `len` positions sees, and what follows, is there.
    fn check_windows(&self, sequence: &Sequence, len: usize) {
        let (size, Some(window)) = (self.pool.positions(), self.window) else { return };
        for at in (len + 1).saturating_sub(window)..sequence.tokens.len() {
            let found = &self.windows[&(sequence.list.windows()[at / size].id, at % size)];
            assert_eq!((found.0, &found.1[..]), (sequence.salt, &sequence.tokens[..=at]), "{at}");
        }
    }

    /// Blocks have as many users as there are sequences that use them.
    fn check_users<'a>(&self, lists: impl Iterator<Item = &'a BlockList> + Clone) {
        self.pool.check(lists.clone().flat_map(BlockList::ids));
        if let Some(windows) = &self.pool.windows {
            windows.check(lists.flat_map(BlockList::held_windows).copied());
        }
    }

    /// A reader of events knows what the pool knows.
    fn check_reader(&mut self) {
        for event in self.pool.take_events() {
            match event {
                CacheEvent::Stored { hash, parent, tokens, .. } => {
                    assert!(parent.is_none_or(|parent| self.reader.contains_key(&parent)));
                    assert!(self.reader.insert(hash, (parent, tokens)).is_none());
                }
                CacheEvent::Removed { hash, .. } => assert!(self.reader.remove(&hash).is_some()),
            }
        }
        assert_eq!(self.reader, self.pool.full_blocks().collect());
        assert_eq!(self.reader.len(), self.pool.full_known());
    }

    /// All that the sequence attends to is its own.
    fn check(&self, sequence: &Sequence) {
        let size = self.pool.positions();
        for at in 0..sequence.tokens.len() {
            let found = &self.cells[&(sequence.list.ids()[at / size], at % size)];
            let expected = (sequence.salt, &sequence.tokens[..=at]);
            assert_eq!((found.0, &found.1[..]), expected);
        }
        self.check_windows(sequence, sequence.tokens.len());
        let len = sequence.tokens.len();
        assert!(sequence.list.goes_on(&self.pool, len));
        if let Some(states) = self.states.as_ref().filter(|_| len > 0) {
            let slot = sequence.list.windows()[(len - 1) / size].id;
            assert_eq!(states[&slot], (sequence.salt, sequence.tokens.clone()));
        }
    }
}

/// Random sequences that begin alike, grow, are cut and end, in a pool that is too small for all of them. A sequence that
/// was promised its blocks gets them.
#[test]
fn sequences_find_their_own_content_and_no_block_is_lost() {
    let (mut cut_short, mut reused_in_windows, mut reused_with_states) = (0, 0, 0);
    for seed in 0..120 {
        let mut random = Random(seed);
        let size = [4, 16, 20][random.below(3)];
        let mut cache = Cache::new(6 + random.below(20), size);
        let count = cache.pool.count();
        let mut slots = usize::MAX;
        if seed % 3 == 2 {
            slots = 1 + random.below(5);
            cache = cache.with_states(slots);
        }
        if seed % 3 == 1 {
            // Enough for the windows of some sequences, and for the rows of a pass.
            let window = 1 + random.below(2 * size);
            slots = 1 + random.below(5);
            cache = cache.with_windows(slots * ((window + size - 2) / size + 2) + 4, window);
        }
        let mut running: Vec<Sequence> = Vec::new();
        let (mut refused, mut reused_tokens) = (0, 0);
        for _ in 0..400 {
            let tokens = |random: &mut Random, most: usize| -> Vec<u32> {
                (0..1 + random.below(most)).map(|_| random.below(2) as u32).collect()
            };
            match random.below(10) {
                0..3 if running.len() < slots => {
                    // Of a few beginnings, and something of its own.
                    let kind = random.below(3) as u32;
                    let mut prompt: Vec<u32> =
                        (0..random.below(3 * size)).map(|i| kind + i as u32 % 5).collect();
                    prompt.extend(tokens(&mut random, size));
                    let most = (prompt.len() + random.below(2 * size)).div_ceil(size);
                    match cache.begin(random.below(2) as u64, &prompt, most) {
                        Ok((sequence, reused)) => {
                            reused_tokens += reused;
                            running.push(sequence);
                        }
                        Err(PoolFull) => refused += 1,
                    }
                }
                3..7 if !running.is_empty() => {
                    let index = random.below(running.len());
                    let sequence = &mut running[index];
                    let room = sequence.most * size - sequence.tokens.len();
                    if room > 0 {
                        let more = tokens(&mut random, room.min(size));
                        cache.extend(sequence, &more).unwrap();
                        let Sequence { list, salt, tokens, .. } = sequence;
                        list.publish(&mut cache.pool, *salt, tokens);
                    }
                }
                7 if !running.is_empty() => {
                    // The last token was computed for nothing, or more.
                    let index = random.below(running.len());
                    let Sequence { list, tokens, salt, most } = &mut running[index];
                    let tokens_before = tokens.len();
                    let back = 1 + [0, random.below(tokens.len().max(1))][random.below(2)];
                    let len = tokens.len().saturating_sub(back);
                    if len > 0 && tokens.len() % size != 0 {
                        let left = list.truncate(&mut cache.pool, len);
                        assert!(left == len || cache.pool.windows.is_some() && left < len);
                        cut_short += usize::from(left < len);
                        tokens.truncate(left);
                        list.publish(&mut cache.pool, *salt, tokens);
                        // It may have to copy a block that others have.
                        if left < tokens_before - 1 && list.promise(&mut cache.pool, *most + 1).is_err() {
                            running.swap_remove(index).list.clear(&mut cache.pool);
                        }
                    }
                }
                8 if running.len() > 1 && running.len() < slots => {
                    // A second text that continues the first one.
                    let index = random.below(running.len());
                    let (salt, most) = (running[index].salt, running[index].most + 1);
                    let len = 1 + random.below(running[index].tokens.len().max(1));
                    let len = running[index].list.reach(&cache.pool, len.min(running[index].tokens.len()));
                    let len = if cache.states.is_some() { len - len % size } else { len };
                    let len = running[index].list.reach(&cache.pool, len);
                    // As whoever shares does: see `prepare_slot`.
                    let Sequence { list, salt: own, tokens, .. } = &mut running[index];
                    list.publish(&mut cache.pool, *own, tokens);
                    let mut list = BlockList::default();
                    if let Ok(copy) = list.share(&mut cache.pool, &running[index].list, len) {
                        cache.copy(copy);
                        let tokens = running[index].tokens[..len].to_vec();
                        match list.promise(&mut cache.pool, most) {
                            Ok(()) => running.push(Sequence { salt, tokens, list, most }),
                            Err(PoolFull) => list.clear(&mut cache.pool),
                        }
                    } else {
                        list.clear(&mut cache.pool);
                    }
                }
                9 if random.below(10) == 0 => {
                    let kept = cache.pool.kept_tokens();
                    assert_eq!(cache.pool.forget_kept(), kept);
                    assert_eq!(cache.pool.kept_tokens(), 0);
                }
                _ if !running.is_empty() => {
                    let mut sequence = running.swap_remove(random.below(running.len()));
                    sequence.list.end(&mut cache.pool, sequence.salt, &sequence.tokens);
                }
                _ => {}
            }
            running.iter().for_each(|sequence| cache.check(sequence));
            cache.check_users(running.iter().map(|sequence| &sequence.list));
            cache.check_reader();
        }
        reused_with_states += if cache.states.is_some() { reused_tokens } else { 0 };
        reused_in_windows += if cache.window.is_some() { reused_tokens } else { 0 };
        assert!(refused + reused_tokens > 0, "{seed}");
        for mut sequence in running {
            sequence.list.end(&mut cache.pool, sequence.salt, &sequence.tokens);
        }
        cache.check_users([].iter());
        assert_eq!(cache.pool.available(), count, "all blocks come back");
    }
    assert!(cut_short > 10 && reused_in_windows > 1000, "{cut_short} {reused_in_windows}");
    assert!(reused_with_states > 500, "{reused_with_states}");
}

/// A text has ten blocks, of which windows have eight: they keep the last ones until others take them.
#[test]
fn a_prefix_is_shared_as_far_as_its_window_is_there() {
    let mut cache = Cache::new(100, 8).with_windows(8, 12);
    let grow = |cache: &mut Cache, kind, len: usize| {
        let (mut sequence, reused) = cache.begin(0, &text(kind, 8), 12).unwrap();
        while sequence.tokens.len() < len {
            let next = text(kind, sequence.tokens.len() + 8)[sequence.tokens.len()..].to_vec();
            cache.extend(&mut sequence, &next).unwrap();
            sequence.list.publish(&mut cache.pool, 0, &sequence.tokens);
            cache.check(&sequence);
        }
        (sequence, reused)
    };
    let (mut first, _) = grow(&mut cache, 1, 80);
    // Blocks from number 2 on are still there.
    let found = |cache: &Cache, len| cache.pool.find(0, &text(1, len)).blocks.len();
    assert_eq!([80, 48, 39, 31, 8].map(|len| found(&cache, len)), [10, 6, 4, 0, 0]);
    assert_eq!([47, 27, 26].map(|len| first.list.reach(&cache.pool, len)), [47, 27, 0]);
    first.list.end(&mut cache.pool, 0, &first.tokens);
    cache.check_users([].iter());
    // Another text takes those that were released first.
    let (mut second, _) = grow(&mut cache, 2, 24);
    assert_eq!([80, 64, 56, 48].map(|len| found(&cache, len)), [10, 8, 7, 0]);
    let (mut third, reused) = cache.begin(0, &text(1, 90), 12).unwrap();
    assert_eq!(reused, 80);
    cache.check(&third);
    for sequence in [&mut second, &mut third] {
        sequence.list.end(&mut cache.pool, 0, &sequence.tokens);
    }
    cache.check_users([].iter());
}

fn text(kind: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| kind * 1000 + i).collect()
}

#[test]
fn a_common_prefix_is_shared_by_whole_blocks_and_the_rest_of_it_is_copied() {
    let mut cache = Cache::new(100, 64);
    let system = text(0, 600);
    let prompt = |kind: u32| [&system[..], &text(kind, 50)].concat();
    let (mut first, reused) = cache.begin(0, &prompt(1), 11).unwrap();
    assert_eq!(reused, 0);
    first.list.publish(&mut cache.pool, 0, &first.tokens);
    // Nine whole blocks, and a copy of 24 positions of the tenth.
    let (second, reused) = cache.begin(0, &prompt(2), 11).unwrap();
    assert_eq!((reused, &second.list.ids()[..9]), (600, &first.list.ids()[..9]));
    assert_ne!(second.list.ids()[9], first.list.ids()[9]);
    assert_eq!(cache.pool.available(), 100 - 11 - 2);
    // Another salt shares nothing.
    let (other, reused) = cache.begin(1, &prompt(1), 11).unwrap();
    assert_eq!(reused, 0);
    for mut sequence in [first, second, other] {
        sequence.list.end(&mut cache.pool, sequence.salt, &sequence.tokens);
    }
    assert_eq!((cache.pool.available(), cache.pool.kept_tokens()), (100, 650 + 10 + 64 + 650));
    cache.pool.check([].iter());
}

#[test]
fn events_say_of_all_blocks_of_a_text_whether_it_has_a_salt() {
    for salt in [0, 5] {
        let mut cache = Cache::new(2, 4);
        let end = |cache: &mut Cache, salt: u64, kind: u32| {
            let (mut sequence, _) = cache.begin(salt, &text(kind, 8), 2).unwrap();
            sequence.list.end(&mut cache.pool, salt, &sequence.tokens);
        };
        end(&mut cache, salt, 1);
        let stored = cache.pool.take_events();
        let is_stored =
            |event: &CacheEvent| matches!(event, CacheEvent::Stored { salted, .. } if *salted == (salt != 0));
        assert!(stored.len() == 2 && stored.iter().all(is_stored), "{stored:?}");
        // Another text takes their place.
        end(&mut cache, 5 - salt, 2);
        let removed = |event: &&CacheEvent| matches!(event, CacheEvent::Removed { salted, .. } if *salted == (salt != 0));
        assert_eq!(cache.pool.take_events().iter().filter(removed).count(), 2);
    }
}

#[test]
fn a_text_that_goes_on_takes_its_last_block_over() {
    let mut cache = Cache::new(4, 64);
    let (mut first, _) = cache.begin(0, &text(0, 100), 2).unwrap();
    let blocks = first.list.ids().to_vec();
    first.list.end(&mut cache.pool, 0, &first.tokens);
    let (mut second, reused) = cache.begin(0, &text(0, 120), 2).unwrap();
    assert_eq!((reused, second.list.ids()), (100, &blocks[..]));
    second.list.end(&mut cache.pool, 0, &second.tokens);
    // The longer text has replaced the shorter one.
    assert_eq!(cache.pool.kept_tokens(), 120);
    // A short common beginning of the second block is not worth a copy, and does not cost what was kept.
    let other = [&text(0, 64 + MIN_COPY - 1)[..], &text(7, 9)].concat();
    let (mut third, reused) = cache.begin(0, &other, 2).unwrap();
    assert_eq!((reused, third.list.ids()[0]), (64, blocks[0]));
    third.list.end(&mut cache.pool, 0, &third.tokens);
    assert_eq!(cache.pool.kept_tokens(), 120 + MIN_COPY - 1 + 9);
}

#[test]
fn the_ends_of_the_oldest_texts_are_forgotten_first() {
    let mut cache = Cache::new(4, 8);
    for kind in [1, 2] {
        let (mut sequence, _) = cache.begin(0, &text(kind, 16), 2).unwrap();
        sequence.list.end(&mut cache.pool, 0, &sequence.tokens);
    }
    let (mut third, _) = cache.begin(0, &text(3, 8), 1).unwrap();
    third.list.end(&mut cache.pool, 0, &third.tokens);
    let known = |cache: &Cache, kind| cache.pool.find(0, &text(kind, 16)).blocks.len();
    assert_eq!([1, 2, 3].map(|kind| known(&cache, kind)), [1, 2, 1]);
}

#[test]
fn promised_blocks_are_kept_for_those_they_are_promised_to() {
    let mut cache = Cache::new(4, 8);
    let (mut first, _) = cache.begin(0, &text(1, 3), 3).unwrap();
    assert!(cache.begin(0, &text(2, 3), 2).is_err());
    let (second, _) = cache.begin(0, &text(2, 3), 1).unwrap();
    assert_eq!(cache.pool.take(), None);
    cache.extend(&mut first, &text(5, 21)).unwrap();
    assert_eq!(cache.extend(&mut first, &[1]), Err(PoolFull));
    cache.pool.check(first.list.ids().iter().chain(second.list.ids()));
}

/// Two texts compute the same block at the same time: one of the two blocks is enough.
#[test]
fn equal_blocks_become_one() {
    let mut cache = Cache::new(4, 8);
    let (mut first, _) = cache.begin(0, &text(1, 9), 2).unwrap();
    let (mut second, _) = cache.begin(0, &text(1, 9), 2).unwrap();
    second.list.synced = 2;
    first.list.publish(&mut cache.pool, 0, &first.tokens);
    second.list.publish(&mut cache.pool, 0, &second.tokens);
    assert_eq!((first.list.ids()[0], second.list.synced), (second.list.ids()[0], 0));
    assert_eq!(cache.pool.available(), 1);
    cache.check(&second);
}

#[test]
fn what_is_moved_is_not_taken_from_others() {
    let mut cache = Cache::new(12, 8);
    let (mut first, _) = cache.begin(0, &text(1, 30), 4).unwrap();
    first.list.publish(&mut cache.pool, 0, &first.tokens);
    let (second, reused) = cache.begin(0, &text(1, 26), 4).unwrap();
    assert_eq!(reused, 24);
    let before = first.list.ids().to_vec();
    let mut copies = Vec::new();
    first.list.own_from(&mut cache.pool, 12, 30, &mut copies).unwrap();
    copies.into_iter().for_each(|copy| cache.copy(Some(copy)));
    let after = first.list.ids().to_vec();
    let same: Vec<bool> = before.iter().zip(&after).map(|(a, b)| a == b).collect();
    assert_eq!(same, [true, false, false, true]);
    assert!(after[1..].iter().all(|&id| !cache.pool.is_shared(id)));
    cache.check(&first);
    cache.check(&second);
    cache.pool.check(first.list.ids().iter().chain(second.list.ids()));
}

/// However many texts go on after the same beginning, the one that is most alike is found, in few comparisons.
#[test]
fn the_block_that_begins_most_like_a_text_is_found_among_many() {
    for (seed, kinds) in [(1, 2), (2, 3), (3, 1000)] {
        let mut random = Random(seed);
        let mut cache = Cache::new(300, 16);
        let start = text(9, 16);
        let mut tokens = |most: usize| -> Vec<u32> {
            (0..1 + random.below(most)).map(|_| random.below(kinds) as u32).collect()
        };
        let mut parted = 0;
        for _ in 0..1500 {
            // Some are whole blocks, and some end within one. The oldest are forgotten.
            let all = [&start[..], &tokens(24)].concat();
            let (mut sequence, _) = cache.begin(0, &all, 3).unwrap();
            sequence.list.end(&mut cache.pool, 0, &sequence.tokens);
            let wanted = [&start[..], &tokens(15)].concat();
            let found = cache.pool.find(0, &wanted);
            assert_eq!(found.blocks.len(), 1);
            let siblings = cache.pool.in_order(Parent::Block(found.blocks[0]));
            let shared = |id: &u32| common(cache.pool.content(*id), &wanted[16..]);
            let longest = siblings.iter().map(shared).max().filter(|longest| *longest > 0);
            assert_eq!(found.part.map(|(_, len)| len), longest);
            assert!(found.part.is_none_or(|(id, len)| shared(&id) == len));
            parted += usize::from(siblings.len() > 50);
        }
        cache.pool.check([].iter());
        assert!(parted > 500, "{parted}");
    }
    // In the order of their tokens and of their blocks: the worst case of a tree that is not balanced.
    let mut cache = Cache::new(4096, 8);
    for kind in 0..4096 {
        let (mut sequence, _) = cache.begin(0, &[kind, 1, 2], 1).unwrap();
        sequence.list.end(&mut cache.pool, 0, &sequence.tokens);
    }
    let depth = cache.pool.depth(cache.pool.children(Parent::Root(0)));
    assert!(depth < 40, "{depth} comparisons for 4096 blocks");
}

/// A block that is only the beginning of another one is not kept beside it.
#[test]
fn of_blocks_that_begin_alike_the_longest_is_kept() {
    let mut cache = Cache::new(10, 8);
    let other = [&text(1, 1)[..], &text(2, 3)].concat();
    // All are computed at the same time. The last two add nothing, and the fourth is a whole block.
    let texts = [text(1, 3), other, text(1, 6), text(1, 8), text(1, 5), text(1, 8)];
    let running: Vec<Sequence> = texts.iter().map(|text| cache.begin(0, text, 1).unwrap().0).collect();
    let kept = running.into_iter().map(|mut sequence| {
        sequence.list.end(&mut cache.pool, 0, &sequence.tokens);
        cache.pool.kept_tokens()
    });
    assert_eq!(kept.collect::<Vec<_>>(), [3, 3 + 4, 4 + 6, 4 + 8, 4 + 8, 4 + 8]);
    cache.pool.check([].iter());
    assert_eq!(cache.pool.available(), 10);
}

/// With a pool of three blocks: the second one is shared, and its copy would be the last that is free.
#[test]
fn a_sequence_that_cannot_grow_has_the_blocks_that_it_had() {
    let mut pool = BlockPool::new(3, 4);
    let (mut first, mut second) = (BlockList::default(), BlockList::default());
    first.reserve(&mut pool, 0, 8).unwrap();
    second.share(&mut pool, &first, 8).unwrap();
    second.truncate(&mut pool, 6);
    let before = second.ids().to_vec();
    assert!(second.reserve(&mut pool, 6, 6).is_err());
    assert_eq!(second.ids()[..2], before[..2]);
}
