//! Tests of the first minutes after a boot: the plugin runs that a kubelet repeats, and the elapsed time.

use std::time::Duration;

use crate::bed::Bed;

/// The time between two runs, which is similar to the time between two requests from a kubelet.
const PAUSE: Duration = Duration::from_secs(5);

/// The time for which the metadata service is unavailable.
const DOWN: Duration = Duration::from_secs(120);

/// The longest pause between two attempts. See node-evidence.md: the join can be up to one minute after the start of
/// the service.
const LONGEST: Duration = Duration::from_secs(60);

/// The requests of a kubelet on a node. To simulate elapsed time, the test moves the times that the node has stored
/// into the past.
struct Boot {
    bed: Bed,
    passed: Duration,
    codes: Vec<i32>,
}

impl Boot {
    fn begin() -> Self {
        let mut bed = Bed::new();
        // Each run makes a few attempts, and takes at most 3 seconds of real time.
        bed.node.set("timeLimit", "3");
        Self {
            bed,
            passed: Duration::ZERO,
            codes: Vec::new(),
        }
    }

    /// Runs the plugin for the kubelet. The kubelet runs the plugin again after the pause, regardless of the result.
    fn ask(&mut self) -> i32 {
        let run = self.bed.run();
        let code = run.code.unwrap();
        if code != 0 {
            let run = run.failed(code).saying("instance metadata service");
            assert!(run.stderr.contains(&self.bed.imds.url()), "{run:#?}");
            self.bed.node.change("failure.json", |record| {
                for time in ["at", "notBefore"] {
                    record[time] = (record[time].as_u64().unwrap() - PAUSE.as_secs()).into();
                }
            });
        }
        self.passed += PAUSE;
        self.codes.push(code);
        code
    }
}

#[test]
fn a_metadata_outage_delays_the_join_by_at_most_one_minute() {
    let mut boot = Boot::begin();
    boot.bed.imds.go_down();
    while boot.passed < DOWN {
        assert_ne!(boot.ask(), 0);
    }
    assert_eq!(boot.bed.server.connections(), 0);
    // A run within the pause returns the recorded failure. Before the first certificate, the pause is at most five
    // seconds, because kubeadm waits.
    let tried = boot.codes.iter().filter(|code| **code == 5).count();
    let remembered = boot.codes.iter().filter(|code| **code == 17).count();
    assert_eq!(tried + remembered, boot.codes.len(), "{:?}", boot.codes);
    assert!((2..=16).contains(&tried), "{:?}", boot.codes);

    boot.bed.imds.come_up();
    boot.bed.node.set("timeLimit", "60");
    while boot.ask() != 0 {
        let late = boot.passed - DOWN;
        assert!(late <= LONGEST + PAUSE, "{:?}", boot.codes);
    }

    assert_eq!(boot.bed.server.creates(), 1);
    assert_eq!(boot.bed.imds.tokens(), 1);
}
