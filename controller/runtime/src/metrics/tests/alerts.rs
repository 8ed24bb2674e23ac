//! Tests of label values: in the alerts, in the tests of the alerts, and on the dashboard.

use kubelet_attestation::page_url;
use node_attestation_core::crd::conditions;
use node_attestation_core::decide::Decision;
use node_attestation_core::refusal::{Deferral, Failure, Ignored};
use node_attestation_core::testing::{cluster, decided, valid};
use regex_lite::Regex;

use super::*;
use crate::logs::outcome;
use crate::metrics::CONDITION_STATUSES;

/// The labels whose values are names of objects, kinds, calls or versions.
const OF_NAMES: [&str; 11] = [
    "namespace",
    "cluster",
    "lease",
    "kind",
    "instance",
    "job",
    "version",
    "provider",
    "service",
    "operation",
    "code",
];

/// A metric, one of its labels, and a value of the label.
type Use = (String, String, String);

/// The uses of labels in metrics of this program.
fn uses(text: &str) -> BTreeSet<Use> {
    let selector = Regex::new(r"(node_attestation_\w+)\{([^}]*)\}").unwrap();
    let matcher = Regex::new(r#"(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)""#).unwrap();
    let mut uses = BTreeSet::new();
    // In JSON, quotes are escaped.
    for selector in selector.captures_iter(&text.replace("\\\"", "\"")) {
        for matcher in matcher.captures_iter(&selector[2]) {
            let is_pattern = matcher[2].ends_with('~');
            let values = matcher[3].split(|c| is_pattern && c == '|');
            uses.extend(values.map(|value| {
                (
                    selector[1].to_owned(),
                    matcher[1].to_owned(),
                    value.to_owned(),
                )
            }));
        }
    }
    uses
}

/// The values of each label in the metrics of a process.
fn written() -> BTreeSet<Use> {
    let metrics = Metrics::new("1");
    for written in [Written::Ok, Written::Conflict, Written::Failed] {
        metrics.record_written("create", written);
        metrics.status_written(written);
    }
    for result in [
        CloudResult::Ok,
        CloudResult::Throttled,
        CloudResult::Refused,
        CloudResult::TimedOut,
        CloudResult::Failed,
    ] {
        metrics.cloud_called(("ec2", "DescribeInstances"), result);
    }
    let of_cluster = metrics.cluster("tenant-a", "prod-1");
    for decision in [
        decided(&valid(), &cluster()),
        Decision::Deny(Denial::NoPemBlock),
        Decision::Fail(Failure::EvidenceExpired),
        Decision::Retry(Deferral::MachineNotFound),
        Decision::Ignore(Ignored::AlreadyDenied),
    ] {
        of_cluster.decided((outcome(&decision), "any"), None, Duration::ZERO);
    }
    let mut all = BTreeSet::new();
    for of in [
        conditions::READY,
        conditions::AUTO_APPROVE_PATHS_CLOSED,
        conditions::WORKLOAD_CLUSTER_REACHABLE,
        conditions::RECORD_ATTESTORS_AUTHORIZED,
        conditions::SERVICE_RANGES_KNOWN,
        conditions::NODES_CAN_RETURN,
        conditions::CONTROL_PLANE_SUPPORTED,
    ] {
        for (_, status) in CONDITION_STATUSES {
            of_cluster.report(|| ClusterReport {
                conditions: vec![(of, status)],
                ..report()
            });
            all.extend(uses(&metrics.text(Format::OpenMetrics)));
        }
    }
    all
}

#[test]
fn each_alert_has_the_url_of_its_row_in_this_version_as_runbook() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (rules, page) = (
        read("packaging/monitoring/alerts.yaml"),
        read("docs/metrics.md"),
    );
    let alerts: Vec<&str> = rules.split("  - alert: ").skip(1).collect();
    assert!(alerts.len() > 10, "{}", alerts.len());

    for alert in alerts {
        let (name, rule) = alert.split_once('\n').unwrap();
        let anchor = format!("alert-{name}");
        let url = format!("{}{anchor}", page_url!("metrics.md#"));
        let mut lines = rule.lines();
        assert!(
            lines.any(|line| line == format!("      runbook_url: {url}")),
            "{name}"
        );
        let row = format!("\n| <a id=\"{anchor}\"></a>`{name}` |");
        assert_eq!(page.matches(&row).count(), 1, "{name}");
    }
}

#[test]
fn each_alert_about_a_cluster_names_it_and_a_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = std::fs::read_to_string(root.join("packaging/monitoring/alerts.yaml")).unwrap();
    let mut of_clusters = 0;
    for rule in rules.split("  - alert: ").skip(1) {
        let line = |start: &str| {
            let mut lines = rule.lines().map(str::trim_start);
            lines.find(|line| line.starts_with(start)).unwrap()
        };
        if rule.contains("namespace, cluster") {
            assert!(line("summary: ").contains("$labels.cluster"), "{rule}");
            of_clusters += 1;
        }
        let description = line("description: ");
        let commands = ["\"kubectl ", "\"node-attestation-controller "];
        let has_command = commands.iter().any(|begin| description.contains(begin));
        // No command shows the open files of a process in a Pod.
        let is_of_files = rule.starts_with("NodeAttestationOpenFiles");
        assert_eq!(has_command, !is_of_files, "{rule}");
    }
    assert!(of_clusters > 10, "{of_clusters}");
}

#[test]
fn the_alert_about_copies_has_the_reasons_with_separate_series() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = std::fs::read_to_string(root.join("packaging/monitoring/alerts.yaml")).unwrap();
    let (_, rule) = rules
        .split_once("alert: NodeAttestationMachineTwice")
        .unwrap();
    let (_, reasons) = rule.split_once("reason=~\"").unwrap();
    let (reasons, _) = reasons.split_once('"').unwrap();

    assert_eq!(reasons.split('|').collect::<Vec<_>>(), COPIED);
}

#[tokio::test]
async fn the_alerts_and_the_dashboard_use_only_existing_label_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    // A separate test compares the page with the reasons in the code.
    let reasons = read("docs/reasons.md");
    let written = written();
    for file in ["alerts.yaml", "alerts-test.yaml", "dashboard.json"] {
        let mut checked = 0;
        for used in uses(&read(&format!("packaging/monitoring/{file}"))) {
            let (_, label, value) = &used;
            let is_written = match label.as_str() {
                label if OF_NAMES.contains(&label) => continue,
                "reason" => {
                    written.contains(&used) || reasons.contains(&format!("\n| `{value}` | "))
                }
                _ => written.contains(&used),
            };
            assert!(is_written, "{used:?} of {file} is never written");
            checked += 1;
        }
        assert!(checked > 1, "{file}");
    }
}
