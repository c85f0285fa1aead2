use std::time::Duration;

/// Processor time of this thread, which other programs hardly change. Elapsed time where the system does not tell.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the clock's value.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0;
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) if !failed => Duration::new(seconds, nanoseconds),
        _ => elapsed(),
    }
}

#[cfg(not(unix))]
pub fn thread_time() -> Duration {
    elapsed()
}

fn elapsed() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
