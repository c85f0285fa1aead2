//! Counts steps in tests, which check that the work for a text grows linearly with its size. Elsewhere it does nothing.

/// Adds to the number of steps.
#[inline(always)]
pub(crate) fn count(steps: usize) {
    #[cfg(test)]
    STEPS.with(|total| total.set(total.get() + steps as u64));
    #[cfg(not(test))]
    let _ = steps;
}

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The number of steps of `work` on this thread.
#[cfg(test)]
pub(crate) fn counted(work: impl FnOnce()) -> u64 {
    let before = STEPS.with(std::cell::Cell::get);
    work();
    STEPS.with(std::cell::Cell::get) - before
}
