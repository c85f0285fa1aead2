//! The control groups of this process, and what they limit it to.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// What a control group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Processors,
}

/// The folders of this process's control group and of those around it, any of which may have a limit.
pub fn control_groups(controller: Controller) -> Vec<PathBuf> {
    listed(&read_to_string("/proc/self/cgroup").unwrap_or_default(), controller)
}

/// `groups` has a line `HIERARCHY:CONTROLLERS:PATH` for each hierarchy; that of version 2 names no controllers.
fn listed(groups: &str, controller: Controller) -> Vec<PathBuf> {
    let (wanted, mounted) = match controller {
        Controller::Memory => ("memory", "/sys/fs/cgroup/memory"),
        Controller::Processors => ("cpu", "/sys/fs/cgroup/cpu"),
    };
    let found = groups.lines().filter_map(|line| {
        let (_, group) = line.split_once(':')?;
        let (controllers, path) = group.split_once(':')?;
        let mounted = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|name| name == wanted) => mounted,
            _ => return None,
        };
        Some((Path::new(mounted), Path::new(path.trim_start_matches('/'))))
    });
    found.flat_map(|(mounted, own)| own.ancestors().map(|group| mounted.join(group))).collect()
}

/// The lowest limit of memory of control groups, in bytes.
pub fn memory_limit(groups: &[PathBuf]) -> Option<u64> {
    let names = ["memory.max", "memory.limit_in_bytes"];
    groups.iter().flat_map(|group| names.map(|name| number(group, name))).flatten().min()
}

/// The lowest limit of processors.
pub fn processor_limit(groups: &[PathBuf]) -> Option<f64> {
    let limit = |group: &PathBuf| {
        let (quota, period) = match read_to_string(group.join("cpu.max")) {
            Ok(text) => {
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
            }
            // Of version 1, where −1 is no limit.
            Err(_) => (number(group, "cpu.cfs_quota_us")?, number(group, "cpu.cfs_period_us")?),
        };
        (period > 0).then(|| quota as f64 / period as f64)
    };
    groups.iter().filter_map(limit).min_by(f64::total_cmp)
}

fn number(group: &Path, name: &str) -> Option<u64> {
    read_to_string(group.join(name)).ok()?.trim().parse().ok()
}

/// The memory left by a control group's limit. The page cache counts as used there, but can be reclaimed.
pub(crate) fn memory_left(group: &Path) -> Option<u64> {
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
    let (limit, used) = (number(group, limit)?, number(group, used)?);
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let reclaimed: u64 = files.into_iter().filter_map(of).sum();
    Some(limit.saturating_sub(used.saturating_sub(reclaimed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder of a control group. Without files it has no limit.
    fn group<const N: usize>(files: [(&str, &str); N]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let folders = [dir.path().to_path_buf()];
        assert_eq!(
            (memory_left(dir.path()), memory_limit(&folders), processor_limit(&folders)),
            (None, None, None)
        );
        files.iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
        dir
    }

    #[test]
    fn a_control_group_limits() {
        let dir = group([
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.stat", "anon 500\nfile 200\ninactive_file 150\nactive_file 50\n"),
            ("cpu.max", "150000 100000\n"),
        ]);
        let around = group([("memory.max", "800\n"), ("cpu.max", "max 100000\n")]);
        let folders = [dir.path().to_path_buf(), around.path().to_path_buf()];
        assert_eq!(memory_left(dir.path()), Some(500));
        assert_eq!((memory_limit(&folders), processor_limit(&folders)), (Some(800), Some(1.5)));
        std::fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        assert_eq!((memory_left(dir.path()), memory_limit(&folders[..1])), (None, None));
    }

    #[test]
    fn a_control_group_of_version_1_limits() {
        let dir = group([
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "700\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 150\ntotal_active_file 50\n"),
            ("cpu.cfs_quota_us", "50000\n"),
            ("cpu.cfs_period_us", "100000\n"),
        ]);
        let folders = [dir.path().to_path_buf()];
        assert_eq!(memory_left(dir.path()), Some(500));
        assert_eq!((memory_limit(&folders), processor_limit(&folders)), (Some(1000), Some(0.5)));
        std::fs::write(dir.path().join("cpu.cfs_quota_us"), "-1\n").unwrap();
        assert_eq!(processor_limit(&folders), None);
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let groups = "9:cpu,memory:/a/b\n8:cpuset:/c\n0::/d\n";
        for (controller, mounted) in [(Controller::Memory, "memory"), (Controller::Processors, "cpu")] {
            let expected = ["a/b", "a", ""].map(|path| Path::new("/sys/fs/cgroup").join(mounted).join(path));
            let expected =
                expected.into_iter().chain(["d", ""].map(|path| Path::new("/sys/fs/cgroup").join(path)));
            assert_eq!(listed(groups, controller), expected.collect::<Vec<_>>());
        }
        assert_eq!(listed("0::/\nnonsense\n", Controller::Memory).len(), 1);
    }
}
