//! The memory limit of the container or service in which the controller runs.

use std::fs;
use std::path::Path;

/// The limit that is assumed if none is set. It equals the limit in `packaging/deploy`.
const DEFAULT: usize = 1024 * 1024 * 1024;

/// The file system of cgroup v2, and the file that contains the group of this process.
const ROOT: &str = "/sys/fs/cgroup";
const OWN: &str = "/proc/self/cgroup";

/// The limit in bytes.
pub(super) fn limit() -> usize {
    // The tests must not depend on the container in which they run.
    if cfg!(test) {
        return DEFAULT;
    }
    let read = |path: &Path| fs::read_to_string(path).ok();
    read(Path::new(OWN)).map_or(DEFAULT, |own| limit_of(&own, read))
}

/// The lowest limit among the group in `own` and its ancestors.
fn limit_of(own: &str, read: impl Fn(&Path) -> Option<String>) -> usize {
    // In cgroup v2, the file contains one line: `0::/group`. In a container, the group is the root.
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = Path::new(ROOT).join(group.unwrap_or_default());
    let within = group.ancestors().filter(|group| group.starts_with(ROOT));
    let limits = within.filter_map(|group| read(&group.join("memory.max"))?.trim().parse().ok());
    limits.min().unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_budget_follows_the_smallest_cgroup_limit() {
        let root = |path: &Path| {
            let is_root = path == Path::new("/sys/fs/cgroup/memory.max");
            is_root.then(|| "268435456\n".to_owned())
        };
        assert_eq!(limit_of("0::/\n", root), 256 * 1024 * 1024);

        let nested = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/a.slice/b.service/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a.slice/memory.max" => Some("2147483648\n".to_owned()),
            _ => None,
        };
        let two = 2 * DEFAULT;
        assert_eq!(limit_of("0::/a.slice/b.service\n", nested), two);
        for (outer, inner, smallest) in [(3, 1, 1), (1, 3, 1), (2, 2, 2)] {
            let both = |path: &Path| {
                let limit = match path.to_str()? {
                    "/sys/fs/cgroup/a.slice/memory.max" => outer,
                    "/sys/fs/cgroup/a.slice/b.service/memory.max" => inner,
                    _ => return None,
                };
                Some(format!("{limit}\n"))
            };
            let limit = limit_of("0::/a.slice/b.service\n", both);
            assert_eq!(limit, smallest, "{outer} {inner}");
        }
        assert_eq!(limit_of("1:memory:/a\n0::/c.slice\n", nested), DEFAULT);
        assert_eq!(limit_of("", |_| None), DEFAULT);
    }
}
