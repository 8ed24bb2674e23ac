use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use node_attestation_core::crd::{
    AWS_ACCOUNT_ANNOTATION, EndorsementKeys, KubeletAuthenticationSpec,
    KubeletAuthenticationStatus, TpmSettings, WORKLOAD_UID_ANNOTATION,
};
use node_attestation_core::ledger::RevocationDecisions;

use super::*;

/// An object that uses all metadata fields.
fn plain() -> KubeletAuthentication {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["insecure"]);
    let mut plain = KubeletAuthentication::new("prod-1", spec);
    let pair = |key: &str| (key.to_owned(), "a".to_owned());
    plain.metadata.labels = Some([pair(WATCH_FILTER_LABEL)].into());
    let annotations = [PAUSED_ANNOTATION, AWS_ACCOUNT_ANNOTATION];
    plain.metadata.annotations = Some(annotations.map(pair).into());
    plain.metadata.owner_references = Some(vec![OwnerReference::default()]);
    plain
}

fn kept(object: KubeletAuthentication) -> ObjectMeta {
    KeptAuthentication::new(object).object.metadata
}

#[test]
fn the_kept_metadata_of_an_object_is_bounded() {
    let plain = plain();
    assert_eq!(kept(plain.clone()), plain.metadata);

    let mut full = plain.clone();
    let pair = |key: &str| (key.to_owned(), "a".to_owned());
    let many = || (0..100_000).map(|number| pair(&format!("b{number}")));
    let metadata = &mut full.metadata;
    metadata.labels.get_or_insert_default().extend(many());
    metadata.annotations.get_or_insert_default().extend(many());
    metadata.finalizers = Some(many().map(|(key, _)| key).collect());
    assert_eq!(kept(full.clone()), plain.metadata);

    let own = many().map(|(key, value)| (format!("{OWN_ANNOTATIONS}{key}"), value));
    full.metadata.annotations = Some(own.collect());
    full.metadata.owner_references = Some(vec![OwnerReference::default(); 1000]);
    let kept = kept(full);
    assert_eq!(kept.annotations.unwrap().len(), MAX_METADATA);
    assert_eq!(kept.owner_references, None);
}

#[test]
fn owner_references_with_overlong_texts_are_not_kept() {
    let changes: [fn(&mut OwnerReference, String); 4] = [
        |owner, text| owner.api_version = text,
        |owner, text| owner.kind = text,
        |owner, text| owner.name = text,
        |owner, text| owner.uid = text,
    ];
    for change in changes {
        for (len, is_kept) in [(MAX_OWNER_TEXT, true), (MAX_OWNER_TEXT + 1, false)] {
            let mut object = plain();
            let mut owner = OwnerReference::default();
            change(&mut owner, "a".repeat(len));
            object.metadata.owner_references = Some(vec![OwnerReference::default(), owner]);
            assert_eq!(kept(object).owner_references.is_some(), is_kept, "{len}");
        }
    }
}

/// The object with this list of released machines.
fn releasing(list: String) -> KubeletAuthentication {
    let mut object = plain();
    let list = (RELEASED_MACHINES_ANNOTATION.to_owned(), list);
    object.metadata.annotations = Some([list].into());
    object
}

#[test]
fn long_annotations_are_truncated() {
    let mut object = releasing("a".repeat(300_000));
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(WORKLOAD_UID_ANNOTATION.to_owned(), "a".repeat(100_000));

    let kept = kept(object).annotations.unwrap();

    assert_eq!(kept[WORKLOAD_UID_ANNOTATION].len(), MAX_ANNOTATION);
    assert_eq!(kept[RELEASED_MACHINES_ANNOTATION].len(), MAX_LIST);
}

#[test]
fn a_truncated_list_of_released_machines_remains_invalid() {
    let spaces = " ".repeat(MAX_RELEASED_LEN - 7);
    let short = releasing(format!("a://m@5{spaces}"));
    assert_eq!(kept(short.clone()).annotations, short.metadata.annotations);

    // The limit is inside a character.
    for padding in 0..4 {
        let (spaces, characters) = (" ".repeat(padding), "\u{1f512}".repeat(50_000));

        let kept = kept(releasing(format!("a://m@5 {spaces}{characters}")));

        let annotations = kept.annotations.as_ref();
        let decisions = RevocationDecisions::of_annotations(annotations);
        assert_eq!(decisions, RevocationDecisions::default());
        let unread = RevocationDecisions::unread(annotations).unwrap();
        assert!(unread.ends_with("so no release has an effect"), "{unread}");
    }
}

#[test]
fn the_counted_memory_includes_the_releases_that_are_read() {
    let memory = |count: usize| {
        let releases = (0..count).map(|number| format!("a://{number}@0 "));
        KeptAuthentication::new(releasing(releases.collect())).memory()
    };

    let (none, most) = (memory(0), memory(MAX_RELEASED));

    assert!(most >= none + MAX_RELEASED * RELEASED_LEN, "{most}");
    // Other releases count only with their text.
    assert!(memory(MAX_RELEASED + 1000) <= most + 2 * STEP, "{most}");
}

fn condition(of: &str, message: String) -> Condition {
    Condition {
        type_: of.to_owned(),
        status: "True".to_owned(),
        reason: "Known".to_owned(),
        message,
        observed_generation: Some(1),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

fn with_conditions(conditions: Vec<Condition>) -> KeptAuthentication {
    let mut object = plain();
    object.status = Some(KubeletAuthenticationStatus {
        conditions,
        ..KubeletAuthenticationStatus::default()
    });
    KeptAuthentication::new(object)
}

#[test]
fn only_conditions_of_the_controller_are_kept_with_short_messages() {
    let own = condition(conditions::READY, "because".to_owned());
    let short = with_conditions(vec![own.clone()]);
    assert_eq!(
        short.status.as_ref().unwrap().conditions,
        std::slice::from_ref(&own)
    );
    assert!(!short.has_other_conditions);

    let long = || "a".repeat(32 * 1024);
    let others = (0..30).map(|number| condition(&format!("Other{number}"), long()));
    let mut all: Vec<_> = others.collect();
    all.push(condition(conditions::READY, long()));
    let kept = with_conditions(all);

    let conditions = &kept.status.as_ref().unwrap().conditions;
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0].message, "a".repeat(4 * 1024));
    assert!(kept.has_other_conditions);
    assert!(kept.memory() <= 2 * STEP, "{}", kept.memory());
}

/// An object that was created at this time, with authorities of this length.
fn object(created: i64, authorities: usize) -> KeptAuthentication {
    let mut object = plain();
    let created = Timestamp::from_second(created).unwrap();
    object.metadata.creation_timestamp = Some(Time(created));
    if authorities > 0 {
        object.spec.tpm = Some(TpmSettings {
            endorsement_keys: EndorsementKeys {
                require_ca: vec!["a".repeat(authorities)],
                ..EndorsementKeys::default()
            },
            ..TpmSettings::default()
        });
    }
    KeptAuthentication::new(object)
}

#[test]
fn the_counted_memory_of_an_object_includes_the_copies_of_its_spec() {
    assert_eq!(object(0, 0).memory(), STEP);
    let large = object(0, 1 << 20).memory();
    assert!((3 << 20..(3 << 20) + 2 * STEP).contains(&large), "{large}");
}

fn key(namespace: &str, name: i64) -> ObjectKey {
    ObjectKey::new(namespace, name.to_string())
}

/// The memory for this number of small objects.
fn memory_for(objects: usize) -> KeptMemory {
    KeptMemory::new(KeptLimit::new(objects * STEP))
}

/// Adds objects with these creation times. Returns the number of objects that are kept.
fn put_all(memory: &mut KeptMemory, namespace: &str, created: impl Iterator<Item = i64>) -> usize {
    let puts = created.map(|second| memory.put(&key(namespace, second), &object(second, 0)));
    puts.filter(|put| put.is_kept).count()
}

#[test]
fn the_oldest_objects_of_a_namespace_are_kept_within_its_memory() {
    let mut memory = memory_for(16);
    let order = (0..12).map(|number| number * 5 % 12);
    put_all(&mut memory, "a", order);

    let left_out: Vec<i64> = (0..12)
        .filter(|second| memory.has_left_out(&key("a", *second)))
        .collect();
    assert_eq!(left_out, [8, 9, 10, 11]);
    assert_eq!((memory.all, memory.left_out()), (8 * STEP, 4));
    let put = memory.put(&key("a", -1), &object(-1, 0));
    assert_eq!(put.displaced, [key("a", 7)]);
    assert!(put.is_kept && memory.has_left_out(&key("a", 7)));

    // An object that becomes larger displaces younger objects, but not older objects.
    let put = memory.put(&key("a", 6), &object(6, STEP));
    assert!(!put.is_kept && put.displaced.is_empty());
    let put = memory.put(&key("a", -1), &object(-1, STEP));
    assert!(put.is_kept);
    assert!(memory.all <= 8 * STEP);
}

#[test]
fn the_objects_of_a_few_namespaces_leave_memory_to_another() {
    let mut memory = memory_for(64);
    let mut kept = |namespace: &str| put_all(&mut memory, namespace, 0..100);
    assert_eq!(["a", "b", "c", "d"].map(&mut kept), [32, 16, 5, 4]);
}

#[test]
fn an_unchanged_object_is_not_displaced() {
    let mut memory = memory_for(64);
    assert_eq!(put_all(&mut memory, "c", 0..20), 20);
    for namespace in ["a", "b"] {
        put_all(&mut memory, namespace, 0..100);
    }
    let left_out = memory.left_out();

    assert_eq!(put_all(&mut memory, "c", 0..20), 20);

    assert_eq!(memory.left_out(), left_out);
}

#[test]
fn a_deleted_object_counts_until_its_task_ends() {
    let mut memory = memory_for(16);
    memory.put(&key("a", 0), &object(0, STEP));
    assert!(memory.all > STEP);
    memory.deleted(&key("a", 0));
    assert_eq!(memory.all, STEP);
    memory.deleted(&key("a", 0));
    assert_eq!(memory.all, STEP, "a list without the object");
    assert_eq!(put_all(&mut memory, "a", 1..8), 7);

    let put = memory.put(&key("a", 8), &object(8, 0));
    assert!(!put.is_kept && !memory.is_list_due());
    let older = memory.put(&key("a", -1), &object(-1, 0));
    assert_eq!(older.displaced, [key("a", 7)], "the task is not displaced");

    memory.remove(&key("a", 0));
    assert!(memory.is_list_due());
    assert!(memory.put(&key("a", 7), &object(7, 0)).is_kept);
    assert_eq!(memory.all, 8 * STEP);

    // An object that is created again replaces the task.
    memory.deleted(&key("a", 7));
    assert!(memory.put(&key("a", 7), &object(7, 0)).is_kept);
    assert_eq!(memory.all, 8 * STEP);
    // An object that was not kept has no task.
    memory.deleted(&key("a", 8));
    assert_eq!((memory.all, memory.left_out()), (8 * STEP, 0));
}

#[test]
fn objects_are_listed_again_once_an_omitted_object_fits() {
    let mut memory = memory_for(16);
    assert_eq!(put_all(&mut memory, "a", 0..9), 8);
    assert!(!memory.is_list_due());

    memory.remove(&key("a", 0));
    assert!(memory.is_list_due());
    assert!(memory.put(&key("a", 8), &object(8, 0)).is_kept);
    assert!(!memory.is_list_due());
    assert_eq!(memory.left_out(), 0);

    memory.put(&key("a", 9), &object(9, 0));
    assert_eq!(memory.left_out(), 1);
    memory.retain_left_out(|_| false);
    assert_eq!(memory.left_out(), 0);
    for second in 1..9 {
        memory.remove(&key("a", second));
    }
    assert!(memory.namespaces.is_empty() && memory.all == 0);
}
