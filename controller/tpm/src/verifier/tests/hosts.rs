//! Tests of machines that a list can identify only by their host, and not by their name.

use std::collections::BTreeMap;
use std::sync::{OnceLock, Weak};

use node_attestation_core::crd::LateProviderIds;
use node_attestation_core::crd::conditions::{ConditionReport, ConditionStatus};
use node_attestation_core::verifier::platform::KeyKind;
use node_attestation_runtime::capi::ObjectKey;

use super::*;
use crate::key_lists::{KeyList, KeyLists, report_without_lists};

/// Metal3's provider ID for a machine on host 7.
const ID: &str = "metal3://metal/host-7/m1";

const HOST: &str = "metal3://metal/host-7/";

/// `ConfigMaps` with these entries, or unreadable `ConfigMaps`.
#[derive(Debug)]
struct Lists(Option<Arc<[Arc<KeyList>]>>);

#[async_trait::async_trait]
impl KeyLists for Lists {
    async fn read(&self) -> Result<Arc<[Arc<KeyList>]>, Unavailable> {
        let lists = self.0.clone();

        lists.ok_or_else(|| Unavailable::new("ConfigMap metal/rack-1 does not exist"))
    }

    fn report(&self) -> ConditionReport {
        report_without_lists(false)
    }
}

/// Returns the list of endorsement keys in a `ConfigMap` with this name and these entries.
fn list(name: &str, entries: &[(&str, &str)]) -> Arc<KeyList> {
    let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    let entries: BTreeMap<_, _> = entries.iter().map(owned).collect();
    Arc::new(KeyList::of(&ObjectKey::new("metal", name), entries))
}

/// A request from machine `m1` on host 7, for a controller with these lists.
fn case(lists: &[Arc<KeyList>]) -> Case {
    let mut case = Case::of_nobody().called(ID);
    case.lists = Some(Arc::new(Lists(Some(lists.into()))));
    case
}

fn own() -> String {
    digest(&machine()).to_string()
}

fn other() -> String {
    digest(&machine().with_endorsement_key(Kind::P384)).to_string()
}

fn unknown() -> TpmDenial {
    TpmDenial::EndorsementKeyUnknown("m1".to_owned())
}

fn of_another() -> TpmDenial {
    TpmDenial::EndorsementKeyOfAnotherMachine {
        machine: "m1".to_owned(),
        trusted: digest(&machine().with_endorsement_key(Kind::P384)),
        presented: digest(&machine()),
    }
}

#[track_caller]
fn waits(decided: Result<Assurance, Refusal>) -> String {
    match decided {
        Err(Refusal::Retry(Deferral::VerifierUnavailable(source))) => source.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_without_a_list_entry_is_matched_by_its_host() {
    let mut listed = Case::of_nobody().called(ID);
    listed.allow_host(HOST, digest(&machine()));
    for case in [listed, case(&[list("rack-1", &[(&own(), HOST)])])] {
        let good = Good::of(&machine(), &case);
        case.proves(&good.response);
    }

    let mut another = Case::of_nobody().called(ID);
    another.allow_host(HOST, digest(&machine().with_endorsement_key(Kind::P384)));
    for case in [another, case(&[list("rack-1", &[(&other(), HOST)])])] {
        assert_eq!(denied(case.enrol(&GOOD.enrolment)), of_another());
    }
}

#[test]
fn an_entry_for_another_host_does_not_apply() {
    for host in [
        "metal3://metal/host-70/",
        "metal3://metal/host-7",
        "metal3://Metal/host-7/",
    ] {
        let mut listed = Case::of_nobody().called(ID);
        listed.allow_host(host, digest(&machine()));
        for case in [listed, case(&[list("rack-1", &[(&own(), host)])])] {
            assert_eq!(denied(case.enrol(&GOOD.enrolment)), unknown(), "{host}");
        }
    }
}

#[test]
fn all_entries_of_a_machine_must_match_its_endorsement_key() {
    let agree = [
        list("rack-1", &[(&own(), HOST)]),
        list("rack-2", &[(&own(), "metal3://metal/host-7/m1")]),
    ];
    let mut agreeing = case(&agree);
    agreeing.allow("m1", digest(&machine()));
    agreeing.challenge(&GOOD.enrolment);

    let beginning = list("all", &[(&own(), HOST), (&other(), "metal3://metal/")]);
    let elsewhere = [
        list("rack-1", &[(&own(), HOST)]),
        list("rack-2", &[(&other(), HOST)]),
    ];
    let mut against_the_list = case(&[list("rack-1", &[(&other(), HOST)])]);
    against_the_list.allow("m1", digest(&machine()));
    let mut twice = Case::of_nobody().called(ID);
    twice.allow("m1", digest(&machine()));
    twice.allow("m1", digest(&machine().with_endorsement_key(Kind::P384)));
    for contradicting in [
        case(&[beginning]),
        case(&elsewhere),
        against_the_list,
        twice,
    ] {
        assert_eq!(denied(contradicting.enrol(&GOOD.enrolment)), of_another());
    }
}

#[test]
fn one_digest_can_be_listed_for_several_hosts() {
    let lists = [
        list("rack-1", &[(&own(), HOST)]),
        list("rack-2", &[(&own(), "metal3://metal/host-8/")]),
    ];

    case(&lists).challenge(&GOOD.enrolment);
}

#[test]
fn an_unreadable_config_map_defers_requests_without_denial() {
    let mut known = Case::of_nobody().called(ID);
    known.allow("m1", digest(&machine()));
    for mut case in [Case::of_nobody().called(ID), known] {
        case.lists = Some(Arc::new(Lists(None)));

        let why = waits(case.enrol(&GOOD.enrolment));

        assert_eq!(why, "ConfigMap metal/rack-1 does not exist");
    }
}

#[test]
fn a_response_waits_for_the_lists_and_can_be_denied_by_them() {
    let mut case = case(&[list("rack-1", &[(&own(), HOST)])]);
    let good = Good::of(&machine(), &case);

    case.lists = Some(Arc::new(Lists(None)));
    waits(case.respond(&good.response));
    case.lists = Some(Arc::new(Lists(Some(
        [list("rack-1", &[(&other(), HOST)])].into(),
    ))));
    assert_eq!(denied(case.respond(&good.response)), of_another());
}

#[test]
fn a_malformed_entry_delays_only_unlisted_machines() {
    let upper = "0F".repeat(32);
    for (key, value) in [
        (upper.as_str(), "metal3://metal/host-8/"),
        ("sha256-of-it", HOST),
        (&other(), "metal3://"),
        (&other(), "host-7"),
        (&other(), "metal3://metal/host-7/\n"),
        (&other(), ""),
    ] {
        let malformed = list("rack-2", &[(key, value)]);

        let known = case(&[list("rack-1", &[(&own(), HOST)]), malformed.clone()]);
        known.challenge(&GOOD.enrolment);

        let mut unknown = case(&[malformed]);
        unknown.platform = Arc::new(FakePlatform::Knows(digest(&machine())));
        let why = waits(unknown.enrol(&GOOD.enrolment));
        assert!(
            why.starts_with("ConfigMap metal/rack-2 has 1 malformed entries"),
            "{why}"
        );
        assert!(why.ends_with(key), "{why}");
        assert!(!why.contains("host-"), "{why}");
    }
}

#[test]
fn an_unlisted_machine_is_denied_after_all_lists_are_read() {
    let lists = [
        list("rack-1", &[(&other(), "metal3://metal/host-8/")]),
        list("rack-2", &[]),
    ];

    assert_eq!(denied(case(&lists).enrol(&GOOD.enrolment)), unknown());
}

#[test]
fn the_platform_is_queried_only_for_machines_without_a_list_entry() {
    let mut listed = case(&[list("rack-1", &[(&own(), HOST)])]);
    listed.platform = Arc::new(FakePlatform::OutOfOrder);
    listed.challenge(&GOOD.enrolment);

    let mut absent = case(&[list("rack-1", &[(&other(), "metal3://metal/host-8/")])]);
    absent.platform = Arc::new(FakePlatform::Knows(digest(&machine())));
    absent.challenge(&GOOD.enrolment);
}

#[test]
fn unreadable_config_maps_defer_a_request() {
    let mut case = Case::valid();
    case.settings.endorsement_keys.config_maps = vec!["rack-1".to_owned()];
    let verifier = case.verifier();
    let evidence = TpmEvidence::Enrol(GOOD.enrolment.clone()).to_json();

    let why = waits(case.decide_by(&verifier, Some(&evidence)));

    assert_eq!(
        why,
        "this controller does not read the ConfigMaps of endorsementKeys"
    );
    let [report] = verifier.reports().try_into().unwrap();
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::False, "ConfigMapUnreadable")
    );
}

#[test]
fn a_fleet_of_thousands_is_listed_in_a_few_config_maps() {
    let lists: Vec<_> = (0..5)
        .map(|rack| {
            let entries: BTreeMap<_, _> = (0..1000)
                .map(|host| {
                    let digest = format!("{rack:032x}{host:032x}");
                    (digest, format!("metal3://metal/rack-{rack}-host-{host}/"))
                })
                .collect();
            let name = ObjectKey::new("metal", format!("rack-{rack}"));
            Arc::new(KeyList::of(&name, entries))
        })
        .collect();

    for (rack, host) in [(0, 0), (2, 7), (4, 999)] {
        let id = format!("metal3://metal/rack-{rack}-host-{host}/m1");
        let id = ProviderId::parse(&id).unwrap();
        let keys = lists.iter().flat_map(|list| list.hosts.keys_of(&id));
        let keys: Vec<_> = keys.map(|key| key.to_string()).collect();
        assert_eq!(keys, [format!("{rack:032x}{host:032x}")]);
    }
    assert!(lists.iter().all(|list| list.malformed.is_none()));
}

#[test]
fn a_machine_without_a_provider_id_needs_a_listed_key() {
    let own = digest(&machine());
    let platform: Arc<dyn Platform> = Arc::new(FakePlatform::Names(own, "n9"));
    let unnamed = |mut case: Case| {
        case.settings.late_provider_ids = LateProviderIds::Allow;
        case.machine.unnamed = true;
        // The platform would confirm the TPM of the machine that the request claims.
        case.platform = platform.clone();
        case
    };
    let mut by_name = unnamed(Case::of_nobody().called(ID));
    by_name.allow("m1", own);
    let mut by_host = unnamed(Case::of_nobody().called(ID));
    by_host.allow_host(HOST, own);
    let by_list = unnamed(case(&[list("rack-1", &[(&self::own(), HOST)])]));
    for case in [by_name, by_host, by_list] {
        let proved = case.proves(&Good::of(&machine(), &case).response);

        assert_eq!(proved.identity().provider_id.as_str(), ID);
        assert_eq!(proved.identity().node_name, None);
    }

    let itself = format!("tpm://{own}").leak();
    for case in [
        unnamed(case(&[])),
        unnamed(Case::of_nobody().called(itself)),
    ] {
        let waits = case.enrol(&GOOD.enrolment);

        assert!(
            matches!(&waits, Err(Refusal::Retry(Deferral::MachineNotReady(machine))) if machine == "m1"),
            "{waits:?}"
        );
    }
    let mut of_another_host = unnamed(Case::of_nobody().called(ID));
    of_another_host.allow_host(HOST, digest(&machine().with_endorsement_key(Kind::P384)));
    assert_eq!(denied(of_another_host.enrol(&GOOD.enrolment)), of_another());
}

#[test]
fn late_provider_ids_are_accepted_only_with_the_setting() {
    let mut case = Case::valid();
    assert!(!case.verifier().accepts_late_provider_ids());

    case.settings.late_provider_ids = LateProviderIds::Allow;

    assert!(case.verifier().accepts_late_provider_ids());
}

/// A platform that checks whether its caller still keeps a list that only requests keep in memory.
#[derive(Debug, Default)]
struct Replaced(OnceLock<Weak<KeyList>>);

#[async_trait::async_trait]
impl KeyLists for Replaced {
    async fn read(&self) -> Result<Arc<[Arc<KeyList>]>, Unavailable> {
        let read = list("rack-1", &[]);
        self.0.set(Arc::downgrade(&read)).unwrap();
        Ok(Arc::new([read]))
    }

    fn report(&self) -> ConditionReport {
        report_without_lists(false)
    }
}

#[async_trait::async_trait]
impl Platform for Replaced {
    async fn endorsement_key(
        &self,
        _provider_id: &ProviderId,
        _kind: KeyKind,
    ) -> Result<Option<KeyDigest>, Unavailable> {
        let list = self.0.get().unwrap();
        assert!(list.upgrade().is_none(), "the request keeps the list");
        Ok(Some(digest(&machine())))
    }
}

#[test]
fn a_request_that_waits_for_the_platform_keeps_no_key_list() {
    let case = || {
        let replaced: Arc<Replaced> = Arc::default();
        let mut case = Case::of_nobody();
        case.lists = Some(replaced.clone());
        case.platform = replaced;
        case
    };

    case().challenge(&GOOD.enrolment);
    case().proves(&GOOD.response);
}
