//! What the machine has: cores and their features.

use std::path::Path;

/// The default number of threads: one for each physical core that this process may use, of the fast kind if there are
/// several. Affinity and cgroup quotas count. Cores of all NUMA nodes are used; to restrict them, set the affinity
/// (`numactl`, `taskset`).
pub fn physical_cores() -> usize {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = allowed_cpus().and_then(|cpus| fast_cores(Path::new("/sys/devices"), &cpus));
    cores.or_else(apple_fast_cores).map_or(most, |cores| cores.clamp(1, most))
}

/// What this processor has of the features that matter for kernels, and that the standard library knows.
pub fn features() -> Vec<&'static str> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    macro_rules! detected {
        ($detected:ident: $($name:tt),*) => {
            [$(($name, std::arch::$detected!($name))),*]
        };
    }
    #[cfg(target_arch = "x86_64")]
    let all = detected!(
        is_x86_feature_detected: "sse4.1", "avx", "f16c", "fma", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vl",
        "avx512vbmi", "avx512vnni", "avx512bf16", "avx512fp16"
    );
    #[cfg(target_arch = "aarch64")]
    let all = detected!(
        is_aarch64_feature_detected: "neon", "fp16", "dotprod", "i8mm", "bf16", "sve", "sve2"
    );
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let all: [(&str, bool); 0] = [];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// The processors that this thread may run on.
#[cfg(target_os = "linux")]
fn allowed_cpus() -> Option<Vec<usize>> {
    // SAFETY: `cpu_set_t` is a plain bit set, for which all zeros are a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `cpu_set_t` of the given size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return None;
    }
    // SAFETY: `cpu` is below `CPU_SETSIZE`, the number of bits of the set.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Some((0..libc::CPU_SETSIZE as usize).filter(allowed).collect())
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Option<Vec<usize>> {
    None
}

/// Distinct physical cores among `cpus`, without those much slower than the fastest. Linux lists Intel's performance
/// cores in `cpu_core`, and on other machines gives each processor a capacity.
fn fast_cores(devices: &Path, cpus: &[usize]) -> Option<usize> {
    let read = |path: &str| Some(std::fs::read_to_string(devices.join(path)).ok()?.trim().to_string());
    let listed = read("cpu_core/cpus").map(|list| cpu_list(&list));
    let capacity = |cpu: usize| -> u64 {
        let number = read(&format!("system/cpu/cpu{cpu}/cpu_capacity")).and_then(|text| text.parse().ok());
        number.unwrap_or(0)
    };
    let most = cpus.iter().map(|cpu| capacity(*cpu)).max()?;
    let is_fast = |cpu: usize| match &listed {
        Some(list) if cpus.iter().any(|cpu| list.contains(cpu)) => list.contains(&cpu),
        _ => 2 * capacity(cpu) >= most,
    };
    let mut cores = std::collections::BTreeSet::new();
    for cpu in cpus.iter().copied().filter(|cpu| is_fast(*cpu)) {
        let topology = |what: &str| read(&format!("system/cpu/cpu{cpu}/topology/{what}"));
        cores.insert((topology("physical_package_id")?, topology("core_id")?));
    }
    Some(cores.len())
}

/// Parses a list such as `0-3,8`; items that are not numbers are skipped.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(target_os = "macos")]
fn apple_fast_cores() -> Option<usize> {
    let (mut cores, mut size) = (0_i32, size_of::<i32>());
    // SAFETY: the name is NUL-terminated, and `sysctlbyname` writes at most the given size to the result.
    let failed = unsafe {
        libc::sysctlbyname(
            c"hw.perflevel0.physicalcpu".as_ptr(),
            (&raw mut cores).cast(),
            &mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    (failed == 0).then(|| usize::try_from(cores).ok()).flatten().filter(|cores| *cores > 0)
}

#[cfg(not(target_os = "macos"))]
fn apple_fast_cores() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's `/sys/devices`: (core, capacity) of each processor, and the list of performance cores.
    fn machine(name: &str, cpus: &[(usize, Option<u32>)], listed: Option<&str>) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("akunu-host-{}-{name}", std::process::id()));
        for (cpu, (core, capacity)) in cpus.iter().enumerate() {
            let at = root.join(format!("system/cpu/cpu{cpu}"));
            std::fs::create_dir_all(at.join("topology")).unwrap();
            std::fs::write(at.join("topology/physical_package_id"), "0\n").unwrap();
            std::fs::write(at.join("topology/core_id"), format!("{core}\n")).unwrap();
            if let Some(capacity) = capacity {
                std::fs::write(at.join("cpu_capacity"), format!("{capacity}\n")).unwrap();
            }
        }
        if let Some(list) = listed {
            std::fs::create_dir_all(root.join("cpu_core")).unwrap();
            std::fs::write(root.join("cpu_core/cpus"), list).unwrap();
        }
        root
    }

    #[test]
    fn threads_are_those_of_fast_physical_cores() {
        let plain = [(0, None), (0, None), (1, None), (1, None)];
        let hybrid = [(0, None), (0, None), (4, None), (4, None), (8, None), (9, None)];
        let arm = [(0, Some(325)), (1, Some(325)), (2, Some(870)), (3, Some(1024))];
        let all: &[usize] = &[0, 1, 2, 3];
        for (name, cpus, listed, allowed, cores) in [
            ("hyperthreads", &plain[..], None, all, 2),
            ("affinity", &plain, None, &[2, 3], 1),
            ("hybrid", &hybrid, Some("0-3\n"), &[0, 1, 2, 3, 4, 5], 2),
            ("slow ones only", &hybrid, Some("0-3\n"), &[4, 5], 2),
            ("capacities", &arm, None, all, 2),
            ("slow capacities only", &arm, None, &[0, 1], 2),
        ] {
            let root = machine(name, cpus, listed);
            assert_eq!(fast_cores(&root, allowed), Some(cores), "{name}");
            std::fs::remove_dir_all(root).unwrap();
        }
        assert_eq!(fast_cores(Path::new("/nowhere"), all), None);
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpu_list(""), [0; 0]);
    }
}
