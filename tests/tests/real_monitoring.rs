//! Tests of the metrics, rules and dashboard with promtool.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::controller::{Application, Bed, Machine};
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::scrape::Diagnostics;

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");
const UNKNOWN: Machine = Machine::new("worker-9", "token9");

static PROMTOOL: LazyLock<std::path::PathBuf> = LazyLock::new(|| {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    binaries::build(&tests.join("promtool/build")).join("promtool")
});

/// Runs promtool. Returns its output.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(&*PROMTOOL);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {printed}\n{input}");
    printed
}

#[test]
fn prometheus_accepts_both_metric_formats() {
    let diagnostics = Diagnostics::default();
    let mut bed = Bed::insecure(&[ONE, TWO]);
    bed.setup = bed.setup.args(&diagnostics.arguments());
    let _controller = bed.setup.start();
    diagnostics.wait_until_ready();
    let joined = Application::insecure(ONE).put(&bed.server);
    bed.wait_for_answer(&joined);
    Application::insecure(UNKNOWN).put(&bed.server);
    let waits = r#"node_attestation_csr_total{outcome="deferred",reason="MachineNotFound",provider="insecure"} 1"#;
    let open = diagnostics.wait_for(&[waits]);

    let complaints = promtool(&["check", "metrics"], &diagnostics.scrape_older());
    assert_eq!(complaints, "");
    // promtool reads OpenMetrics only if it contains timestamps.
    let timed: String = open
        .lines()
        .map(|line| {
            let time = if line.starts_with('#') {
                ""
            } else {
                " 1700000000"
            };
            format!("{line}{time}\n")
        })
        .collect();
    let files = Scratch::new("openmetrics");
    let (file, blocks) = (files.write("scrape", timed), files.join("blocks"));
    let words = ["tsdb", "create-blocks-from", "openmetrics"];
    let paths = [file, blocks].map(|path| path.display().to_string());
    let arguments = words.into_iter().chain(paths.iter().map(String::as_str));
    let blocks = promtool(&arguments.collect::<Vec<_>>(), "");
    assert!(blocks.contains("BLOCK ULID"), "{blocks}");
}

#[test]
fn promtool_accepts_the_metrics_of_a_node() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(NULL, &server);
    node.run().succeeded();
    server.set_signer(Signer::deny("AnotherMachine", "not you"));
    node.command(&["renew", "--force"]).failed(12);

    let metrics = node.command(&["metrics"]).succeeded().stdout;

    assert_eq!(promtool(&["check", "metrics"], &metrics), "");
}

#[test]
fn each_alert_fires_and_resolves_and_stays_silent_after_one_change() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/monitoring");
    let [rules, tests] = ["alerts.yaml", "alerts-test.yaml"].map(|name| folder.join(name));
    let read = |path: &Path| -> serde_json::Value {
        serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let [rules_path, tests_path] = [&rules, &tests].map(|path| path.display().to_string());
    promtool(
        &["check", "rules", "--lint=all", "--lint-fatal", &rules_path],
        "",
    );
    promtool(&["test", "rules", &tests_path], "");

    let (rules, tests) = (read(&rules), read(&tests));
    let page = std::fs::read_to_string(folder.join("../../docs/metrics.md")).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    for rule in rules {
        let alert = rule["alert"].as_str().unwrap();
        let tests = tests["tests"].as_array().unwrap().iter();
        let expected = tests.filter_map(|test| {
            let times = test["alert_rule_test"].as_array().unwrap();
            let [first, last] = [times.first(), times.last()].map(Option::unwrap);
            let firing = |time: &serde_json::Value| time["exp_alerts"].as_array().unwrap().len();
            (first["alertname"] == alert).then(|| [firing(first), firing(last)])
        });
        // The alert fires and then stops. In the case with one change, it does not fire.
        assert_eq!(expected.collect::<Vec<_>>(), [[1, 0], [0, 0]], "{alert}");
        assert!(page.contains(&format!("</a>`{alert}` |")), "{alert}");
    }
    let told = page
        .lines()
        .filter(|line| line.starts_with("| <a id=\"alert-"));
    assert_eq!(told.count(), rules.len());
}

#[test]
fn each_metric_of_the_rules_and_of_the_dashboard_is_on_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("docs/metrics.md");
    for file in ["alerts.yaml", "alerts-test.yaml", "dashboard.json"] {
        let text = read(&format!("packaging/monitoring/{file}"));
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_word(c));
        let metrics: std::collections::BTreeSet<&str> = words
            .filter(|word| word.starts_with("node_attestation_") || word.starts_with("process_"))
            .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
            .collect();
        assert!(!metrics.is_empty(), "{file}");
        for metric in metrics {
            assert!(
                page.contains(&format!("| `{metric}` |")),
                "{metric} of {file}"
            );
        }
    }
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("packaging/monitoring/dashboard.json")).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().unwrap();
            // Replace Grafana's variables with values, as Grafana does.
            let expr = expr
                .replace("$__rate_interval", "5m")
                .replace("$namespace", ".*");
            promtool(
                &[
                    "promql",
                    "format",
                    "--experimental",
                    &expr.replace("$cluster", ".*"),
                ],
                "",
            );
        }
    }
}
