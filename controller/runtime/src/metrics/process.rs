//! The resource usage of this process, from Linux.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// The resource usage. Values that Linux does not report are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) open_files: Option<usize>,
    pub(super) max_files: Option<u64>,
}

impl Usage {
    /// The usage of this process.
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The descriptor of the directory itself is not counted.
        let open = fs::read_dir("/proc/self/fd").ok();
        let open = open.map(|entries| entries.count().saturating_sub(1));
        Self {
            open_files: open,
            max_files: getrlimit(Resource::Nofile).current,
            ..Self::of_stat(&stat)
        }
    }

    /// Parses a line of `/proc/PID/stat` (proc(5)).
    fn of_stat(stat: &str) -> Self {
        // The second field is the program name in parentheses, and can contain any character, so parsing starts after
        // it.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let field = |number: usize| {
            let mut fields = rest.split_ascii_whitespace();
            fields.nth(number.checked_sub(3)?)?.parse::<u64>().ok()
        };
        let ticks = field(14).zip(field(15));
        let ticks = ticks.and_then(|(user, system)| u32::try_from(user + system).ok());
        let per_second = u32::try_from(clock_ticks_per_second()).ok();
        let page = u64::try_from(page_size()).unwrap_or_default();
        Self {
            cpu_seconds: ticks
                .zip(per_second)
                .map(|(ticks, per_second)| f64::from(ticks) / f64::from(per_second)),
            threads: field(20),
            virtual_bytes: field(23),
            resident_bytes: field(24).map(|pages| pages * page),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_are_read_from_proc_despite_unusual_program_names() {
        let rest = "S 1 1 1 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 7 0 12345 1048576 256 0";
        let usage = Usage::of_stat(&format!("42 (a) (b c) {rest}\n"));

        let per_second = u32::try_from(clock_ticks_per_second()).unwrap();
        let page = u64::try_from(page_size()).unwrap();
        assert_eq!(usage.cpu_seconds, Some(200.0 / f64::from(per_second)));
        assert_eq!(usage.threads, Some(7));
        assert_eq!(usage.virtual_bytes, Some(1_048_576));
        assert_eq!(usage.resident_bytes, Some(256 * page));
    }

    #[test]
    fn an_empty_proc_stat_leaves_every_metric_unknown() {
        assert_eq!(Usage::of_stat(""), Usage::default());
    }

    #[test]
    fn this_process_has_open_files_and_a_limit() {
        let usage = Usage::now();

        assert!(usage.open_files > Some(2), "{usage:?}");
        assert!(usage.max_files >= usage.open_files.map(|open| u64::try_from(open).unwrap()));
        assert!(usage.resident_bytes > Some(0));
    }
}
