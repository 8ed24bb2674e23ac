//! Tests of reconciliations that do not parse objects, because no object has changed.

use node_attestation_core::crd::{KubeletAuthenticationStatus, RELEASED_MACHINES_ANNOTATION};
use node_attestation_core::signer::testing::parsed_keys;

use super::*;

/// Returns the result of a reconciliation, and the number of objects and keys that it parses.
fn parses(
    world: &mut World,
    parsed: &mut Parsed,
) -> (Result<Option<Service>, NotReady>, [usize; 2]) {
    let before = parsed.count();
    let mut plan = None;
    let keys = parsed_keys(|| plan = Some(world.plan_after(parsed)));
    (plan.unwrap(), [parsed.count() - before, keys])
}

/// Replaces each object with another version that has the same content.
fn touch(world: &mut World) {
    world.authentication.metadata.resource_version = Some("2".to_owned());
    world.authentication.status = Some(KubeletAuthenticationStatus::default());
    for source in [&mut world.sources.ca, &mut world.sources.kubeconfig] {
        if let Observed::Present(secret) = source {
            let mut other = Secret::clone(secret);
            other.metadata.resource_version = Some("2".to_owned());
            *secret = Arc::new(other);
        }
    }
}

type Change = fn(&mut World);

#[test]
fn a_second_reconcile_without_a_change_parses_nothing() {
    let (mut world, mut parsed) = (world(), Parsed::default());
    let (first, count) = parses(&mut world, &mut parsed);
    assert_eq!(count, [3, 1]);
    let first = first.unwrap().unwrap();

    for touched in [false, true] {
        if touched {
            touch(&mut world);
        }
        let (second, count) = parses(&mut world, &mut parsed);

        assert_eq!(count, [0, 0], "{touched}");
        let second = second.unwrap().unwrap();
        assert_eq!(second.fingerprint, first.fingerprint);
        assert_eq!(
            second.configuration.audiences,
            first.configuration.audiences
        );
        assert!(Arc::ptr_eq(&second.ca, &first.ca));
        assert!(Arc::ptr_eq(&second.kubeconfig, &first.kubeconfig));
    }
}

#[test]
fn only_a_changed_object_is_parsed_again() {
    let changes: [(Change, [usize; 2]); 4] = [
        (|world| world.sources.ca = ca_secret(&ca()), [1, 1]),
        (
            |world| {
                let (certificate, _) = ca();
                world.sources.kubeconfig = kubeconfig(&certificate, SERVER);
            },
            [1, 0],
        ),
        (
            |world| {
                world.authentication.spec.serving_address_ranges = vec!["10.0.0.0/8".to_owned()];
            },
            [1, 0],
        ),
        (
            |world| world.cluster().service_ranges = vec!["10.0.0.0/8".to_owned()],
            [0, 0],
        ),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        let (mut world, mut parsed) = (world(), Parsed::default());
        let before = world.plan_after(&mut parsed).unwrap().unwrap();

        change(&mut world);
        let (after, count) = parses(&mut world, &mut parsed);

        assert_eq!(count, expected, "{number}");
        assert_ne!(after.unwrap().unwrap().fingerprint, before.fingerprint);
    }
}

#[test]
fn a_refused_object_is_parsed_once() {
    let changes: [(&str, Change, [usize; 2]); 4] = [
        (
            "CAKeyMismatch",
            |world| world.sources.ca = ca_secret(&(ca().0, ca().1)),
            [2, 1],
        ),
        (
            "CAInvalid",
            |world| world.sources.ca = ca_secret(&(ca().0, "text".to_owned())),
            [2, 0],
        ),
        (
            "KubeconfigRefused",
            |world| world.sources.kubeconfig = secret(&[(KUBECONFIG_KEY, "text".to_owned())]),
            [2, 1],
        ),
        (
            "ServingAddressRangeInvalid",
            |world| world.authentication.spec.serving_address_ranges = vec!["all".to_owned()],
            [3, 1],
        ),
    ];
    for (reason, change, expected) in changes {
        let (mut world, mut parsed) = (world(), Parsed::default());
        change(&mut world);

        for expected in [expected, [0, 0], [0, 0]] {
            let (refused, count) = parses(&mut world, &mut parsed);

            assert_eq!(refused.unwrap_err().reason(), reason);
            assert_eq!(count, expected, "{reason}");
            touch(&mut world);
        }
    }
}

/// When the Cluster is deleted, the supervisor stops its watch of a Secret. Afterwards, the reconciliation does not
/// keep the key.
#[test]
fn a_deleted_secret_is_not_kept() {
    for gone in [Observed::Unknown, Observed::Absent] {
        let (mut world, mut parsed) = (world(), Parsed::default());
        let secrets = [&world.sources.ca, &world.sources.kubeconfig];
        let secrets = secrets.map(|source| Arc::downgrade(source.present().unwrap()));
        drop(world.plan_after(&mut parsed));

        world.sources.ca = gone.clone();
        world.sources.kubeconfig = gone;
        drop(world.plan_after(&mut parsed));

        assert!(secrets.iter().all(|secret| secret.upgrade().is_none()));
    }
}

#[test]
fn attestor_settings_are_kept_while_the_cluster_exists() {
    let (mut world, mut parsed) = (world(), Parsed::default());
    let settings: Arc<()> = Arc::default();
    world.of_attestors = Some(settings.clone());
    world.sources.kubeconfig = Observed::Absent;
    let why = world.plan_after(&mut parsed).unwrap_err();
    assert_eq!(why.reason(), "KubeconfigNotFound");
    assert_eq!(Arc::strong_count(&settings), 3);

    world.sources.cluster = Observed::Absent;
    let why = world.plan_after(&mut parsed).unwrap_err();

    assert_eq!(why.reason(), "ClusterNotFound");
    assert_eq!(Arc::strong_count(&settings), 2);
}

#[test]
fn unchanged_decisions_are_parsed_once() {
    let (mut world, mut parsed) = (world(), Parsed::default());
    let annotate = |world: &mut World, list: &str| {
        let annotation = (RELEASED_MACHINES_ANNOTATION.to_owned(), list.to_owned());
        world.authentication.metadata.annotations = Some([annotation].into());
    };
    annotate(&mut world, "a://m@5");
    let mut decide = |world: &World| {
        let before = parsed.count();
        let authentication = Arc::new(KeptAuthentication::new(world.authentication.clone()));
        let decisions = parsed.decisions(&authentication);
        let count = parsed.count() - before;
        (decisions, parsed.unread_releases(), count)
    };
    let (first, unread, count) = decide(&world);
    assert_eq!((first.released.len(), unread, count), (1, None, 1));

    touch(&mut world);
    let (second, unread, count) = decide(&world);
    assert!(Arc::ptr_eq(&second, &first));
    assert_eq!((unread, count), (None, 0));

    let releases = (0..301).map(|number| format!("a://{number}@5 "));
    annotate(&mut world, &releases.collect::<String>());
    let (third, unread, count) = decide(&world);
    assert_eq!((third.released.len(), count), (300, 1));
    let expected = format!(
        "read the released machines: the annotation {RELEASED_MACHINES_ANNOTATION} has more than 300 releases, so \
         only the latest 300 have an effect"
    );
    assert_eq!(unread, Some(expected));
}
