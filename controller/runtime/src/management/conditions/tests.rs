mod approvers;
mod unreadable;

use std::time::Duration;

use node_attestation_core::crd::KubeletAuthenticationSpec;
use node_attestation_core::testing::now;

use node_attestation_core::verifier::{Expiring, VerifierUnavailable, Verifiers};

use super::*;
use crate::management::cluster_status::AutoApprove;
use crate::management::spec_mapping::unauthorized;
use crate::preflight::ServerVersion;

fn authentication(attestor: &str) -> KubeletAuthentication {
    let spec = KubeletAuthenticationSpec::new("prod-1", &[attestor]);
    let mut authentication = KubeletAuthentication::new("prod-1", spec);
    authentication.metadata.generation = Some(3);
    authentication
}

fn healthy() -> Health {
    Health {
        answers: ApiReachability::Yes(ServerVersion {
            name: "v1.36.3".to_owned(),
            number: Some((1, 36)),
        }),
        ..Health::default()
    }
}

fn serving(health: Health) -> ClusterPhase {
    ClusterPhase::Serving {
        ca: None,
        health: Box::new(health),
        attestors: Vec::new(),
        findings: Box::default(),
    }
}

/// The status and the reason of a condition.
fn said(verdict: &ClusterPhase, condition: &str) -> (String, String) {
    let status = status(&authentication("aws"), verdict, now());
    let found = conditions::find(&status.conditions, condition).unwrap();
    assert_eq!(found.observed_generation, Some(3));
    (found.status.clone(), found.reason.clone())
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_served_cluster_is_ready() {
    let verdict = serving(healthy());

    assert_eq!(said(&verdict, "Ready"), is("True", "Ready"));
    let reachable = said(&verdict, "WorkloadClusterReachable");
    assert_eq!(reachable, is("True", "Reachable"));
}

#[test]
fn incomplete_tasks_are_named_in_the_ready_condition() {
    let verdict = serving(Health {
        failed: vec![
            "revocation: forbidden".to_owned(),
            "the tokens: late".to_owned(),
        ],
        ..healthy()
    });

    let status = status(&authentication("aws"), &verdict, now());

    let ready = conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!(ready.reason, "UpkeepIncomplete");
    assert!(
        ready
            .message
            .ends_with("revocation: forbidden; the tokens: late")
    );
    let reachable = said(&verdict, "WorkloadClusterReachable");
    assert_eq!(reachable, is("True", "Reachable"));
}

#[test]
fn too_many_missing_machines_set_a_condition_with_the_annotation() {
    let mut health = healthy();
    health.held_back = Some(12);
    health.identities = Some(IdentityCounts {
        live: 40,
        tombstones: 0,
    });
    health.failed = vec!["bootstrap tokens: late".to_owned()];

    let status = status(&authentication("aws"), &serving(health), now());

    let ready = conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!(
        (&*ready.status, &*ready.reason),
        ("False", "ManyMachinesMissing")
    );
    for words in [
        "12 of 40 live node identities",
        "attestation.cluster.x-k8s.io/allow-retirement=12",
        "these tasks failed: bootstrap tokens: late",
    ] {
        assert!(ready.message.contains(words), "{}", ready.message);
    }
}

#[test]
fn an_unused_external_signer_is_in_the_message_of_a_ready_cluster() {
    for (signer_unused, expected) in [(false, ""), (true, SIGNER_UNUSED)] {
        let verdict = serving(Health {
            signer_unused,
            ..healthy()
        });
        let status = status(&authentication("aws"), &verdict, now());
        let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
        assert_eq!((&*ready.status, &*ready.message), ("True", expected));
    }
}

#[test]
fn live_records_of_an_unauthorized_attestor_set_a_condition() {
    const CONDITION: &str = "RecordAttestorsAuthorized";

    let of = |unauthorized: &[(&str, usize)]| {
        let counts = unauthorized
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        serving(Health {
            unauthorized: Some(counts.collect()),
            ..healthy()
        })
    };
    assert_eq!(said(&of(&[]), CONDITION), is("True", "Authorized"));

    let verdict = of(&[("insecure", 1), ("tpm", 7)]);
    assert_eq!(
        said(&verdict, CONDITION),
        is("False", "AttestorNotAuthorized")
    );
    assert_eq!(said(&verdict, "Ready"), is("True", "Ready"));
    let status = status(&authentication("aws"), &verdict, now());
    let condition = conditions::find(&status.conditions, CONDITION).unwrap();
    assert!(
        condition.message.contains(": insecure (1), tpm (7). "),
        "{}",
        condition.message
    );
    let reported = report_of(&verdict, &status).conditions;
    assert!(reported.contains(&(CONDITION, "false")), "{reported:?}");
}

#[test]
fn signers_in_a_forged_status_are_replaced_while_the_cluster_is_served() {
    let mut authentication = authentication("aws");
    let forged = Some("example.com/forged".to_owned());
    authentication.status = Some(KubeletAuthenticationStatus {
        kubelet_client_certificate_signer: forged.clone(),
        kubelet_serving_certificate_signer: forged,
        ..KubeletAuthenticationStatus::default()
    });

    let status = status(&authentication, &serving(healthy()), now());

    let own = Provider::AWS.client_signer();
    assert_eq!(status.kubelet_client_certificate_signer, Some(own));
    let serving = status.kubelet_serving_certificate_signer;
    assert_eq!(serving.as_deref(), Some(BUILT_IN_SERVING_SIGNER));
}

#[test]
fn an_unknown_attestor_is_reported_in_both_conditions() {
    let why = VerifierUnavailable::Unknown("contoso".to_owned());
    let verifiers: Verifiers = [Err(why.clone())].into_iter().collect();
    let availability = Box::new(verifiers.availability());
    let verdict = ClusterPhase::Stopped(NotReady::NoAttestor { why, availability });

    for condition in ["Ready", "AttestorsAvailable"] {
        assert_eq!(said(&verdict, condition), is("False", "AttestorUnknown"));
    }
}

#[test]
fn unknown_service_addresses_set_a_condition() {
    const CONDITION: &str = "ServiceRangesKnown";
    let of = |are_known, unreadable: Option<&str>| {
        serving(Health {
            services: Some(ServiceAddressState {
                are_known,
                unreadable: unreadable.map(ToOwned::to_owned),
            }),
            ..healthy()
        })
    };
    assert_eq!(said(&of(true, None), CONDITION), is("True", "Known"));
    for (verdict, reason, message) in [
        (
            of(false, None),
            "ServiceRangesUnknown",
            "requests for serving certificates with addresses stay pending, unless EC2 reports the addresses: neither the Cluster \
             (spec.clusterNetwork.services.cidrBlocks) nor the workload cluster (kubectl get servicecidrs) has the \
             addresses of Services",
        ),
        (
            of(false, Some("10.96.0.0")),
            "ServiceRangeInvalid",
            "an entry of spec.clusterNetwork.services.cidrBlocks of the Cluster is invalid: \"10.96.0.0\"; requests for \
             serving certificates with addresses stay pending, unless EC2 reports the addresses",
        ),
        (
            of(true, Some("10.96.0.0")),
            "ServiceRangeInvalid",
            "an entry of spec.clusterNetwork.services.cidrBlocks of the Cluster is invalid: \"10.96.0.0\"",
        ),
    ] {
        assert_eq!(said(&verdict, CONDITION), is("False", reason));
        let status = status(&authentication("aws"), &verdict, now());
        let condition = conditions::find(&status.conditions, CONDITION).unwrap();
        assert_eq!(condition.message, message);
        assert_eq!(said(&verdict, "Ready"), is("True", "Ready"));
    }
}

#[test]
fn locked_out_machines_set_a_condition_with_the_remedy() {
    const CONDITION: &str = "NodesCanReturn";
    let of = |locked_out| {
        serving(Health {
            locked_out: Some(locked_out),
            ..healthy()
        })
    };
    let machines = |names: &[&str], count| LockedOut::Machines {
        named: names.iter().map(ToString::to_string).collect(),
        count,
    };
    let verdict = of(LockedOut::NotChecked);
    assert_eq!(said(&verdict, CONDITION), is("True", "NotApplicable"));
    let verdict = of(machines(&[], 0));
    assert_eq!(said(&verdict, CONDITION), is("True", "TokensLive"));
    for (count, command) in [(2, "m1 m2"), (7, "--all")] {
        let verdict = of(machines(&["m1", "m2"], count));
        assert_eq!(said(&verdict, CONDITION), is("False", "TokensExpired"));
        let status = status(&authentication("aws"), &verdict, now());
        let condition = conditions::find(&status.conditions, CONDITION).unwrap();
        let told = format!(
            "the nodes of {count} Machines need a bootstrap token to rejoin, but their tokens have expired: m1, m2. "
        );
        assert!(
            condition.message.starts_with(&told),
            "{}",
            condition.message
        );
        assert!(
            condition.message.contains("tokens recreate prod-1 -n "),
            "{}",
            condition.message
        );
        assert!(
            condition.message.ends_with(command),
            "{}",
            condition.message
        );
        let reported = report_of(&verdict, &status).conditions;
        assert!(reported.contains(&(CONDITION, "false")), "{reported:?}");
    }
}

#[test]
fn records_are_counted_only_for_unauthorized_attestors() {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["tpm", "aws"]);
    let of = |attestors: [&'static str; 4]| counted(&unauthorized(&spec, attestors));

    assert_eq!(of(["tpm", "aws", "aws", "tpm"]), "");
    assert_eq!(
        of(["insecure", "aws", "null", "insecure"]),
        "insecure (2), null (1)"
    );
}

#[test]
fn a_message_contains_few_of_many_unauthorized_attestors() {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["tpm"]);
    let names: Vec<_> = (0..50_000).map(|number| format!("a{number}")).collect();
    let names = names.iter().map(String::as_str).chain(["a1", "tpm"]);

    assert_eq!(
        counted(&unauthorized(&spec, names)),
        "a0 (1), a1 (2), a2 (1), a3 (1), a4 (1), a5 (1), a6 (1), a7 (1), others (49992)"
    );
}

#[test]
fn each_failure_has_its_reason_in_the_ready_condition() {
    let with = |change: &dyn Fn(&mut Health)| {
        let mut health = healthy();
        change(&mut health);
        serving(health)
    };
    let old = with(&|health| {
        health.answers = ApiReachability::Yes(ServerVersion {
            name: "v1.32.0".to_owned(),
            number: Some((1, 32)),
        });
    });
    let down = with(&|health| health.answers = ApiReachability::No("no route".to_owned()));
    let out = with(&|health| health.answers = ApiReachability::Refused("who?".to_owned()));
    let poor = with(&|health| health.missing = vec!["sign a/b".to_owned()]);
    let expired = ClusterPhase::Serving {
        ca: Some(CaOutOfTime::Expired),
        health: Box::new(healthy()),
        attestors: Vec::new(),
        findings: Box::default(),
    };
    for (verdict, reason) in [
        (old, "KubernetesTooOld"),
        (down, "Unreachable"),
        (out, "KubeconfigWithoutAccess"),
        (poor, "KubeconfigWithoutAccess"),
        (expired, "CAExpired"),
        (ClusterPhase::Stopped(NotReady::Broken), "InternalError"),
    ] {
        assert_eq!(said(&verdict, "Ready"), is("False", reason));
    }
    assert_eq!(
        said(&ClusterPhase::Waiting, "Ready"),
        is("Unknown", "Pending")
    );
}

#[test]
fn attestor_reports_are_conditions_and_do_not_affect_ready() {
    let verdict = ClusterPhase::Serving {
        ca: None,
        health: Box::new(healthy()),
        attestors: vec![ConditionReport {
            of: conditions::AWS_CREDENTIALS_READY,
            holds: ConditionStatus::False,
            reason: reason::CREDENTIALS_UNUSABLE,
            message: "there are none".to_owned(),
        }],
        findings: Box::default(),
    };

    let credentials = said(&verdict, "AWSCredentialsReady");
    assert_eq!(credentials, is("False", "CredentialsUnusable"));
    assert_eq!(said(&verdict, "Ready"), is("True", "Ready"));
}

#[test]
fn an_unchanged_result_does_not_change_the_status() {
    let mut authentication = authentication("aws");
    let verdict = serving(healthy());
    let first = status(&authentication, &verdict, now());
    authentication.status = Some(first.clone());

    let later = now() + Duration::from_hours(1);

    assert_eq!(status(&authentication, &verdict, later), first);
}

#[test]
fn the_status_lists_the_signers_that_kubelets_must_use() {
    let of = |attestor: &str| {
        let status = status(&authentication(attestor), &serving(healthy()), now());
        (
            status.kubelet_client_certificate_signer.unwrap(),
            status.kubelet_serving_certificate_signer,
        )
    };
    assert_eq!(
        of("aws"),
        (
            "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws".to_owned(),
            Some("kubernetes.io/kubelet-serving".to_owned())
        )
    );
    assert_eq!(of("insecure").1, None);
}

#[test]
fn a_restart_keeps_the_conditions_until_new_data_arrives() {
    let mut authentication = authentication("aws");
    let mut health = healthy();
    health.paths = Some((AutoApprove::Closed, "closed".to_owned()));
    let before = status(&authentication, &serving(health), now());
    authentication.status = Some(before.clone());
    let later = now() + Duration::from_mins(1);

    for verdict in [ClusterPhase::Waiting, serving(Health::default())] {
        let after = status(&authentication, &verdict, later);

        assert_eq!(after.conditions, before.conditions, "{verdict:?}");
    }
}

#[test]
fn conditions_without_data_are_unknown_and_pending() {
    for verdict in [ClusterPhase::Waiting, serving(Health::default())] {
        for condition in [
            "Ready",
            "WorkloadClusterReachable",
            "AutoApprovePathsClosed",
        ] {
            assert_eq!(said(&verdict, condition), is("Unknown", "Pending"));
        }
    }
}

#[test]
fn a_pending_attestor_keeps_its_previous_condition() {
    let with = |holds, reason| ClusterPhase::Serving {
        ca: None,
        health: Box::new(healthy()),
        attestors: vec![ConditionReport {
            of: conditions::AWS_CREDENTIALS_READY,
            holds,
            reason,
            message: String::new(),
        }],
        findings: Box::default(),
    };
    let unknown = with(ConditionStatus::Unknown, reason::PENDING);
    let credentials = |authentication: &KubeletAuthentication, verdict: &ClusterPhase| {
        let status = status(authentication, verdict, now());
        conditions::find(&status.conditions, "AWSCredentialsReady")
            .unwrap()
            .status
            .clone()
    };
    let mut authentication = authentication("aws");
    assert_eq!(credentials(&authentication, &unknown), "Unknown");
    let accepted = with(ConditionStatus::True, reason::CREDENTIALS_ACCEPTED);
    authentication.status = Some(status(&authentication, &accepted, now()));

    assert_eq!(credentials(&authentication, &unknown), "True");
    let throttled = with(ConditionStatus::Unknown, "Throttled");
    assert_eq!(credentials(&authentication, &throttled), "Unknown");
    let unusable = with(ConditionStatus::False, reason::CREDENTIALS_UNUSABLE);
    assert_eq!(credentials(&authentication, &unusable), "False");
}

#[test]
fn an_attestors_findings_are_in_the_metrics_report() {
    let at = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
    let expiring = Expiring {
        at,
        subject: "CN=a vendor".to_owned(),
    };
    let phase = ClusterPhase::Serving {
        ca: None,
        health: Box::new(healthy()),
        attestors: Vec::new(),
        findings: Box::new(Findings {
            conditions: Vec::new(),
            expiring: Some(expiring),
            unmeasured: Some(3),
        }),
    };

    let report = report_of(&phase, &status(&authentication("tpm"), &phase, now()));

    assert_eq!((report.expiring, report.unmeasured), (Some(at), Some(3)));
    let stopped = ClusterPhase::Stopped(NotReady::Broken);
    let report = report_of(&stopped, &KubeletAuthenticationStatus::default());
    assert_eq!((report.expiring, report.unmeasured), (None, None));
}

#[test]
fn a_cluster_beyond_the_limit_of_its_namespace_is_only_counted_in_metrics() {
    let authentication = authentication("tpm");
    let report = |why| {
        let phase = ClusterPhase::Stopped(why);
        report_of(&phase, &status(&authentication, &phase, now()))
    };
    let limit = std::num::NonZeroUsize::MIN;

    let beyond = report(NotReady::TooManyClusters(limit));
    assert_eq!(beyond.phase, "stopped");
    assert_eq!(beyond.conditions, []);

    let within = report(NotReady::Broken);
    assert!(
        within.conditions.contains(&("Ready", "false")),
        "{within:?}"
    );
}
