//! Reports the verifiers' findings in metrics and in the log, because there is no object with conditions.

use std::time::Duration;

use node_attestation_core::crd::conditions::ConditionStatus;
use node_attestation_core::verifier::{Findings, Verifiers};

use crate::clock::now;
use crate::metrics::{ClusterMetrics, ClusterReport};

/// The interval between two checks of the findings.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Updates the findings in the metrics. Logs a condition that is not `True` whenever it changes. Never returns.
pub(super) async fn tell(verifiers: Verifiers, metrics: ClusterMetrics) {
    let mut reported = Vec::new();
    loop {
        let findings = verifiers.findings(now());
        let Findings {
            conditions,
            expiring,
            unmeasured,
        } = findings;
        metrics.report(|| ClusterReport {
            expiring: expiring.map(|first| first.at),
            unmeasured,
            ..ClusterReport::serving()
        });
        for report in &conditions {
            if report.holds == ConditionStatus::False && !reported.contains(report) {
                let reason = report.reason;
                tracing::warn!(condition = report.of, reason, "{}", report.message);
            }
        }
        reported = conditions;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;

    use kubelet_attestation::names::Provider;
    use kubelet_attestation::version::EvidenceVersion;
    use node_attestation_core::crd::conditions::{BOOT_MEASURED, ConditionReport};
    use node_attestation_core::refusal::Refusal;
    use node_attestation_core::verifier::{Appraisal, Assurance, Verifier};
    use tracing::Level;

    use super::*;
    use crate::metrics::{Format, Metrics};
    use crate::testing::ThreadLog;

    /// The machines in the condition at each lookup. If there are none, the condition is `True`.
    const MACHINES: [Option<&str>; 5] = [Some("m1"), Some("m1"), Some("m1, m2"), None, Some("m1")];

    /// A verifier that reports one more machine in the metrics at each lookup, and the machines in [`MACHINES`] in a
    /// condition.
    #[derive(Debug, Default)]
    struct Finding(AtomicUsize);

    #[async_trait::async_trait]
    impl Verifier for Finding {
        fn provider(&self) -> &Provider {
            &Provider::TPM
        }

        fn versions(&self) -> &[EvidenceVersion] {
            &[]
        }

        async fn verify(&self, _: Appraisal<'_>, _: SystemTime) -> Result<Assurance, Refusal> {
            unreachable!("nobody asks")
        }

        fn findings(&self, _: SystemTime) -> Findings {
            let lookups = self.0.fetch_add(1, Ordering::Relaxed);
            let machines = MACHINES.get(lookups).copied().flatten();
            let holds = match machines {
                Some(_) => ConditionStatus::False,
                None => ConditionStatus::True,
            };
            let report = ConditionReport {
                of: BOOT_MEASURED,
                holds,
                reason: "NotMeasured",
                message: machines.unwrap_or_default().to_owned(),
            };
            Findings {
                conditions: vec![report],
                unmeasured: Some(lookups),
                ..Findings::default()
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_metrics_are_updated_with_the_findings() {
        let metrics = Metrics::new("1");
        let verifier: Arc<dyn Verifier> = Arc::new(Finding::default());
        let cluster = metrics.cluster("", "").only();
        let telling = tokio::spawn(tell(Verifiers::from_iter([verifier]), cluster));

        tokio::time::sleep(Duration::from_secs(1)).await;
        for count in 0..3 {
            let text = metrics.text(Format::Prometheus);
            let line = format!(
                r#"node_attestation_unmeasured_machines{{namespace="",cluster=""}} {count}"#
            );
            assert!(text.contains(&line), "{text}");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        telling.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_false_condition_is_logged_whenever_it_changes() {
        let log = ThreadLog::start(Level::WARN);
        let metrics = Metrics::new("1");
        let verifier: Arc<dyn Verifier> = Arc::new(Finding::default());
        let cluster = metrics.cluster("", "").only();
        let telling = tokio::spawn(tell(Verifiers::from_iter([verifier]), cluster));

        let mut counts = Vec::new();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in MACHINES {
            counts.push(log.count(&["BootMeasured", "NotMeasured", "m1"]));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        telling.abort();

        assert_eq!(counts, [1, 1, 2, 2, 3], "{}", log.text());
    }
}
