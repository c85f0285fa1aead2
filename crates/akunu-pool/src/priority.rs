/// Lets the other threads of the process go first when processors are busy. Only Linux has a niceness per thread; elsewhere this
/// does nothing.
pub fn give_way() {
    // The only thread that it can fail for is one whose niceness is already the highest.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(10);
}
