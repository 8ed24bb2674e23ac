//! Tests of the valid case with one change.

use std::collections::BTreeMap;

use node_attestation_core::crd::AwsSettings;
use node_attestation_core::refusal::Denial;

use super::*;
use crate::testing::{INSTANCE, MINUTE, document, facts, launch};

fn policy() -> AwsPolicy {
    AwsPolicy::new(&AwsSettings::default(), Some("prod".to_owned()))
}

/// The result for an instance that is one hour old.
fn checked(facts: &InstanceFacts) -> Result<Checked, Refusal> {
    check(facts, &document(), &policy(), launch() + 60 * MINUTE)
}

#[track_caller]
fn denied<T: std::fmt::Debug>(checked: Result<T, Refusal>) -> AwsDenial {
    match checked {
        Err(Refusal::Deny(Denial::Evidence(denial))) => {
            denial.downcast_ref::<AwsDenial>().unwrap().clone()
        }
        other => panic!("not denied: {other:?}"),
    }
}

#[track_caller]
fn waits<T: std::fmt::Debug>(checked: Result<T, Refusal>) {
    let Err(Refusal::Retry(deferral)) = checked else {
        panic!("not put off: {checked:?}")
    };
    assert_eq!(deferral.reason(), "InstanceNotVisible");
}

/// The results after the change: for an instance that is one minute old, and for an instance that is one hour old.
fn young_and_old(change: impl Fn(&mut InstanceFacts)) -> [Result<Checked, Refusal>; 2] {
    let mut changed = facts();
    change(&mut changed);
    [1, 60].map(|minutes| {
        check(
            &changed,
            &document(),
            &policy(),
            launch() + minutes * MINUTE,
        )
    })
}

fn instance() -> String {
    INSTANCE.to_owned()
}

fn tag(cluster: &str) -> String {
    format!("sigs.k8s.io/cluster-api-provider-aws/cluster/{cluster}")
}

#[test]
fn a_valid_instance_is_accepted_with_its_node_name() {
    for state in ["running", "pending"] {
        let facts = InstanceFacts {
            state: state.to_owned(),
            ..facts()
        };
        let checked = checked(&facts).unwrap();

        assert_eq!(
            checked.node_name.as_str(),
            "ip-10-0-0-1.eu-west-1.compute.internal"
        );
        assert_eq!(checked.first_claim_only, None);
    }
}

#[test]
fn an_instance_whose_account_or_zone_differs_is_denied() {
    let contradicts = |what| AwsDenial::InstanceContradictsDocument(instance(), what);
    let [young, old] = young_and_old(|facts| facts.owner = "999999999999".to_owned());
    assert_eq!(denied(young), contradicts("account"));
    assert_eq!(denied(old), contradicts("account"));

    let [_, old] = young_and_old(|facts| facts.zone = "eu-west-1b".to_owned());
    assert_eq!(denied(old), contradicts("availability zone"));
    let [_, old] = young_and_old(|facts| facts.id = "i-0".to_owned());
    assert_eq!(denied(old), contradicts("ID"));
}

#[test]
fn an_old_instance_unknown_to_ec2_is_denied() {
    let absent_at = |time| Err::<(), _>(absent(&document(), time));

    waits(absent_at(launch() - MINUTE));
    waits(absent_at(launch() + 5 * MINUTE - Duration::from_secs(1)));
    assert_eq!(
        denied(absent_at(launch() + 5 * MINUTE)),
        AwsDenial::InstanceNotFound(instance())
    );
}

#[test]
fn an_instance_that_is_not_running_is_denied() {
    for state in ["shutting-down", "terminated", "stopping", "stopped", "odd"] {
        let [young, old] = young_and_old(|facts| facts.state = state.to_owned());
        for checked in [young, old] {
            assert_eq!(
                denied(checked),
                AwsDenial::InstanceNotRunning {
                    instance: instance(),
                    state: state.to_owned(),
                }
            );
        }
    }
}

#[test]
fn an_instance_without_state_account_or_zone_waits_then_is_denied() {
    let contradicts = |what| AwsDenial::InstanceContradictsDocument(instance(), what);
    let not_running = AwsDenial::InstanceNotRunning {
        instance: instance(),
        state: String::new(),
    };
    let field: [fn(&mut InstanceFacts) -> &mut String; 3] = [
        |facts| &mut facts.state,
        |facts| &mut facts.owner,
        |facts| &mut facts.zone,
    ];
    let denials = [
        not_running,
        contradicts("account"),
        contradicts("availability zone"),
    ];
    for (field, denial) in field.into_iter().zip(denials) {
        let [young, old] = young_and_old(|facts| field(facts).clear());

        waits(young);
        assert_eq!(denied(old), denial);
    }
}

#[test]
fn a_restarted_instance_can_be_reported_as_stopped_but_not_terminated() {
    let before = |state: &str| {
        let state = state.to_owned();
        young_and_old(move |facts| {
            facts.state.clone_from(&state);
            facts.launched = Some(launch() - 60 * MINUTE);
        })
    };
    for state in ["stopped", "stopping"] {
        let [young, old] = before(state);
        waits(young);
        assert_eq!(denied(old).reason(), "InstanceNotRunning");
    }
    let [young, _] = before("terminated");
    assert_eq!(denied(young).reason(), "InstanceNotRunning");

    // The instance was stopped after the document was issued, because the two times of a single launch differ only by
    // seconds.
    let [young, _] = young_and_old(|facts| {
        facts.state = "stopped".to_owned();
        facts.launched = Some(launch() - MINUTE);
    });
    assert_eq!(denied(young).reason(), "InstanceNotRunning");
}

#[test]
fn a_root_volume_attached_over_60_seconds_from_launch_blocks_the_join() {
    let apart = |seconds: i64| {
        let time = if seconds < 0 {
            launch() - Duration::from_secs(seconds.unsigned_abs())
        } else {
            launch() + Duration::from_secs(seconds.unsigned_abs())
        };
        let volume = Attachment { time: Some(time) };
        checked(&InstanceFacts {
            root: RootDevice::Volume(Some(volume)),
            ..facts()
        })
        .unwrap()
        .first_claim_only
    };
    assert_eq!(apart(60), None);
    assert_eq!(apart(-60), None);
    for seconds in [61, -61] {
        assert_eq!(
            apart(seconds),
            Some(AwsDenial::RootVolumeMoved(instance(), 61))
        );
    }
}

#[test]
fn an_instance_without_a_first_interface_waits_then_is_denied() {
    let [young, old] = young_and_old(|facts| facts.first_interface = None);

    waits(young);
    assert_eq!(
        denied(old),
        AwsDenial::InstanceIncomplete(instance(), "first network interface")
    );
}

#[test]
fn an_instance_without_a_root_volume_cannot_join() {
    for root in [None, Some(Attachment { time: None })] {
        let facts = InstanceFacts {
            root: RootDevice::Volume(root),
            ..facts()
        };
        assert_eq!(
            checked(&facts).unwrap().first_claim_only,
            Some(AwsDenial::InstanceIncomplete(instance(), "root volume"))
        );
    }
}

#[test]
fn an_instance_without_an_interface_attach_time_cannot_join() {
    let facts = InstanceFacts {
        first_interface: Some(Attachment { time: None }),
        ..facts()
    };

    assert_eq!(
        checked(&facts).unwrap().first_claim_only,
        Some(AwsDenial::InstanceIncomplete(
            instance(),
            "first network interface"
        ))
    );
}

#[test]
fn a_young_instance_without_root_volume_facts_waits() {
    let hidden: [fn(&mut InstanceFacts); 3] = [
        |facts| facts.root = RootDevice::Volume(None),
        |facts| facts.root = RootDevice::Volume(Some(Attachment { time: None })),
        |facts| facts.first_interface = Some(Attachment { time: None }),
    ];
    for hide in hidden {
        let [young, old] = young_and_old(hide);

        waits(young);
        let denial = old.unwrap().first_claim_only.unwrap();
        assert_eq!(denial.reason(), "InstanceIncomplete");
    }
}

#[test]
fn the_root_volume_check_skips_instance_stores_and_can_be_disabled() {
    let store = InstanceFacts {
        root: RootDevice::InstanceStore,
        ..facts()
    };
    assert_eq!(checked(&store).unwrap().first_claim_only, None);

    let moved = InstanceFacts {
        root: RootDevice::Volume(None),
        ..facts()
    };
    let mut lenient = policy();
    lenient.settings.root_volume_check = false;
    let checked = check(&moved, &document(), &lenient, launch() + 60 * MINUTE);
    assert_eq!(checked.unwrap().first_claim_only, None);
}

#[test]
fn a_document_from_an_earlier_launch_is_denied_at_any_age() {
    let launched = |time| young_and_old(move |facts| facts.launched = Some(time));
    for checked in launched(launch() + MINUTE) {
        checked.unwrap();
    }
    for checked in launched(launch() + MINUTE + Duration::from_secs(1)) {
        assert_eq!(
            denied(checked),
            AwsDenial::DocumentOfEarlierLaunch(instance())
        );
    }
    let year = launch() + 365 * 24 * 60 * MINUTE;
    check(&facts(), &document(), &policy(), year).unwrap();
}

#[test]
fn the_new_document_of_a_restarted_instance_is_accepted() {
    let new = VerifiedDocument {
        pending_time: launch() + 60 * MINUTE,
        ..document()
    };
    // EC2 can report the new launch, or can still report the previous launch.
    for launched in [launch() + 60 * MINUTE, launch()] {
        let facts = InstanceFacts {
            launched: Some(launched),
            ..facts()
        };
        check(&facts, &new, &policy(), launch() + 61 * MINUTE).unwrap();
    }
}

#[test]
fn an_old_instance_without_a_launch_time_is_denied() {
    let [young, old] = young_and_old(|facts| facts.launched = None);

    waits(young);
    assert_eq!(
        denied(old),
        AwsDenial::InstanceContradictsDocument(instance(), "launch")
    );
}

#[test]
fn an_instance_of_another_cluster_is_denied_at_any_age() {
    for checked in young_and_old(|facts| {
        facts.tags = BTreeMap::from([(tag("dev"), "owned".to_owned())]);
    }) {
        assert_eq!(
            denied(checked),
            AwsDenial::TagMismatch {
                instance: instance(),
                tag: tag("prod"),
            }
        );
    }
    let [_, both] = young_and_old(|facts| {
        facts.tags.insert(tag("dev"), "owned".to_owned());
    });
    assert_eq!(denied(both).reason(), "TagMismatch");
}

#[test]
fn an_instance_shared_with_another_cluster_is_accepted() {
    for (key, value) in [
        (tag("dev"), "shared"),
        ("kubernetes.io/cluster/dev".to_owned(), "owned"),
    ] {
        let mut tagged = facts();
        tagged.tags.insert(key, value.to_owned());
        checked(&tagged).unwrap();
    }
}

#[test]
fn an_old_instance_without_tags_is_denied() {
    let [young, old] = young_and_old(|facts| facts.tags.clear());
    waits(young);
    assert_eq!(denied(old).reason(), "TagMismatch");

    let [young, _] = young_and_old(|facts| {
        facts.tags.insert(tag("prod"), "shared".to_owned());
    });
    assert_eq!(denied(young).reason(), "TagMismatch");
}

#[test]
fn required_tags_replace_the_cluster_tag_except_for_foreign_clusters() {
    let mut required = policy();
    required.settings.required_tags = BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
    let with = |tags: &[(&str, &str)]| {
        let tags = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let facts = InstanceFacts {
            tags: tags.collect(),
            ..facts()
        };
        check(&facts, &document(), &required, launch() + 60 * MINUTE)
    };
    let mismatch = |tag: &str| AwsDenial::TagMismatch {
        instance: instance(),
        tag: tag.to_owned(),
    };
    with(&[("env", "prod")]).unwrap();
    assert_eq!(denied(with(&[("env", "dev")])), mismatch("env"));
    assert_eq!(denied(with(&[(&tag("prod"), "owned")])), mismatch("env"));
    assert_eq!(
        denied(with(&[("env", "prod"), (&tag("dev"), "owned")])),
        mismatch(&tag("prod"))
    );
}

#[test]
fn without_cluster_api_only_the_required_tags_are_checked() {
    let standalone = AwsPolicy {
        cluster: None,
        ..policy()
    };
    for tags in [
        BTreeMap::new(),
        BTreeMap::from([(tag("dev"), "owned".to_owned())]),
    ] {
        let facts = InstanceFacts { tags, ..facts() };
        check(&facts, &document(), &standalone, launch() + 60 * MINUTE).unwrap();
    }
}

#[test]
fn the_node_name_follows_the_policy() {
    let mut by_id = policy();
    by_id.settings.node_name = AwsNodeName::InstanceId;
    let shouted = InstanceFacts {
        private_dns_name: Some("IP-10-0-0-1.Internal.".to_owned()),
        ..facts()
    };
    assert_eq!(
        checked(&shouted).unwrap().node_name.as_str(),
        "ip-10-0-0-1.internal"
    );
    let checked = check(&shouted, &document(), &by_id, launch() + 60 * MINUTE);
    assert_eq!(checked.unwrap().node_name.as_str(), INSTANCE);
}

#[test]
fn an_instance_without_a_valid_node_name_waits_then_is_denied() {
    for name in [None, Some("a b"), Some("x_y")] {
        let [young, old] = young_and_old(|facts| {
            facts.private_dns_name = name.map(str::to_owned);
        });
        waits(young);
        assert_eq!(denied(old), AwsDenial::InstanceNameless(instance()));
    }
}
