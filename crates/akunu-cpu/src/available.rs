//! Memory that is free.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Memory that can be allocated without swapping: `MemAvailable` of Linux, or less if a control group limits it. `None` if
/// unknown.
pub fn available_memory() -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let system = mem_available(&read_to_string("/proc/meminfo").ok()?)?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups_of(&groups).filter_map(|group| group_available(&group));
    Some(limits.fold(system, u64::min))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The folders of this process's control group for memory and of those around it, any of which may have a limit.
/// `groups` has a line `HIERARCHY:CONTROLLERS:PATH` for each hierarchy; that of version 2 names no controllers.
fn groups_of(groups: &str) -> impl Iterator<Item = PathBuf> {
    let found = groups.lines().filter_map(|line| {
        let (_, group) = line.split_once(':')?;
        let (controllers, path) = group.split_once(':')?;
        let mounted = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|name| name == "memory") => "/sys/fs/cgroup/memory",
            _ => return None,
        };
        Some((Path::new(mounted), Path::new(path.trim_start_matches('/'))))
    });
    found.flat_map(|(mounted, own)| own.ancestors().map(|group| mounted.join(group)))
}

/// The memory left by a control group's limit. The page cache counts as used there, but can be reclaimed.
fn group_available(group: &Path) -> Option<u64> {
    // Of version 2, then of version 1.
    let of_version_2 = left(group, ["memory.max", "memory.current", "inactive_file ", "active_file "]);
    of_version_2.or_else(|| {
        let names =
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "];
        left(group, names)
    })
}

/// `files` are the lines of the page cache in `memory.stat`.
fn left(group: &Path, [limit, used, files @ ..]: [&str; 4]) -> Option<u64> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(limit)?, number(used)?);
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let reclaimed: u64 = files.into_iter().filter_map(of).sum();
    Some(limit.saturating_sub(used.saturating_sub(reclaimed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(mem_available(text), Some(8 << 20));
        assert_eq!(mem_available("MemTotal: 5 kB\n"), None);
    }

    /// The folder of a control group. Without files it has no limit.
    fn group(files: [(&str, &str); 3]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(group_available(dir.path()), None);
        files.iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
        dir
    }

    #[test]
    fn a_control_group_limits() {
        let dir = group([
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.stat", "anon 500\nfile 200\ninactive_file 150\nactive_file 50\n"),
        ]);
        assert_eq!(group_available(dir.path()), Some(500));
        std::fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(group_available(dir.path()), None);
    }

    #[test]
    fn a_control_group_of_version_1_limits() {
        let dir = group([
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "700\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 150\ntotal_active_file 50\n"),
        ]);
        assert_eq!(group_available(dir.path()), Some(500));
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let found: Vec<PathBuf> = groups_of("9:cpu,memory:/a/b\n8:cpuset:/c\n0::/d\n").collect();
        let expected = ["memory/a/b", "memory/a", "memory/", "d", ""];
        assert_eq!(found, expected.map(|path| Path::new("/sys/fs/cgroup").join(path)));
        assert_eq!(groups_of("0::/\nnonsense\n").count(), 1);
    }
}
