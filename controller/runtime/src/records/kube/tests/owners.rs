//! Tests of the owners of records, and of writes to records about certificates.

use super::*;

fn owner(kind: &str, uid: &str) -> Value {
    let group = match kind {
        "Cluster" => "cluster.x-k8s.io/v1beta2",
        _ => "v1",
    };
    json!({"apiVersion": group, "kind": kind, "name": "prod-1", "uid": uid})
}

fn in_former_version(mut owner: Value) -> Value {
    owner["apiVersion"] = json!("cluster.x-k8s.io/v1beta1");
    owner
}

#[tokio::test]
async fn records_get_their_cluster_as_owner_and_keep_other_owners() {
    let (client, written) = with_records(vec![
        ("prod-1.n1", None),
        ("prod-1.n2", Some(owner("ConfigMap", "c"))),
        ("prod-1.n3", Some(owner("Cluster", "now"))),
        // The owner is a previous Cluster with the same name, so Kubernetes deletes the record.
        ("prod-1.n4", Some(owner("Cluster", "before"))),
        (
            "prod-1.n5",
            Some(in_former_version(owner("Cluster", "now"))),
        ),
        // The record has more owners than the client reads. None of these owners is replaced.
        ("prod-1.cut", Some(owner("ConfigMap", "c"))),
    ]);
    let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());

    assert!(!records.end_with("now").await.unwrap());

    let patch =
        |owners: Value| json!({"metadata": {"resourceVersion": "7", "ownerReferences": owners}});
    assert_eq!(
        *written.lock(),
        [
            json!({"path": "prod-1.n1", "body": patch(json!([owner("Cluster", "now")]))}),
            json!({
                "path": "prod-1.n2",
                "body": patch(json!([owner("ConfigMap", "c"), owner("Cluster", "now")])),
            }),
            json!({"path": "prod-1.n5", "body": patch(json!([owner("Cluster", "now")]))}),
        ]
    );
}

#[tokio::test]
async fn owners_are_written_again_until_each_record_has_one() {
    for (name, owner, expected) in [
        ("prod-1.n1", Some(owner("Cluster", "now")), true),
        ("prod-1.n1", Some(owner("Cluster", "before")), true),
        ("prod-1.n1", None, false),
        // A renewal changes the record at the same time.
        ("prod-1.busy", None, false),
    ] {
        let (client, written) = with_records(vec![(name, owner)]);
        let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());

        let all_had_it = records.end_with("now").await.unwrap();

        assert_eq!(all_had_it, expected, "{name}");
        assert_eq!(written.lock().len(), usize::from(!expected), "{name}");
    }
}

#[tokio::test]
async fn an_invalid_record_does_not_keep_the_owner_from_the_others() {
    let (client, written) = with_records(vec![("prod-1.invalid", None), ("prod-1.n1", None)]);
    let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());

    let error = records.end_with("now").await.unwrap_err();

    assert!(error.is_invalid(), "{error:?}");
    let written = written.lock();
    let names: Vec<_> = written.iter().map(|write| &write["path"]).collect();
    assert_eq!(names, ["prod-1.invalid", "prod-1.n1"]);
}

#[tokio::test]
async fn an_unserved_cluster_version_is_reported_as_an_outage() {
    let not_found = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""});
    let metadata = json!({"name": "prod-1.n1", "namespace": "default", "resourceVersion": "7"});
    let without_owner = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": {"resourceVersion": "9"}, "items": [{"metadata": metadata}],
    });
    let calls: Arc<Unshared<Vec<String>>> = Arc::default();
    let told = calls.clone();
    let client = client(move |uri| {
        told.lock().push(uri.to_owned());
        if is_watch(uri) {
            Answer::Never
        } else if uri.contains("/apis/cluster.x-k8s.io/") {
            Answer::Json(404, not_found.clone())
        } else {
            Answer::Json(200, without_owner.clone())
        }
    });
    let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());

    let error = records.end_with("now").await.unwrap_err();

    let error = kubelet_attestation::errors::error_chain(&error);
    assert!(error.contains("does not serve the kind"), "{error}");
    let calls = calls.lock().clone();
    assert!(!calls.is_empty());
    let is_write = |uri: &String| uri.contains("/prod-1.n1");
    assert!(!calls.iter().any(is_write), "{calls:?}");
}

#[tokio::test]
async fn records_of_a_deleted_cluster_do_not_belong_to_its_successor() {
    for (owned, expected) in [
        (vec![], false),
        (vec![Some(owner("Cluster", "before"))], false),
        (vec![Some(owner("Cluster", "now"))], true),
        (vec![Some(in_former_version(owner("Cluster", "now")))], true),
        (vec![Some(owner("ConfigMap", "before"))], true),
        (vec![None], true),
        (vec![Some(owner("Cluster", "before")), None], true),
    ] {
        let existing = owned.iter().map(|owner| ("prod-1.n1", owner.clone()));
        let (client, written) = with_records(existing.collect());
        let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());

        assert_eq!(
            records.has_any_of("now").await.unwrap(),
            expected,
            "{owned:?}"
        );
        assert!(written.lock().is_empty());
    }
}

#[tokio::test]
async fn a_new_record_gets_the_cluster_as_owner_once_it_is_known() {
    let (client, written) = with_records(Vec::new());
    let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());
    let owners =
        |number: usize| written.lock()[number]["body"]["metadata"]["ownerReferences"].clone();

    records.create(&bare()).await.unwrap();
    assert_eq!(owners(0), Value::Null);

    records.end_with("now").await.unwrap();
    records.create(&bare()).await.unwrap();
    assert_eq!(owners(1), json!([owner("Cluster", "now")]));
}

#[tokio::test]
async fn a_move_keeps_the_last_certificate() {
    let (client, written) = with_records(Vec::new());
    let records = KubeRecords::start(client, "default", "prod-1", &Metrics::default());
    let boot = TpmBoot {
        resets: 3,
        restarts: 0,
        clock: 5,
    };
    let issued = |boot| LastIssued {
        generation: 2,
        serial: "0a".to_owned(),
        not_after: at(12),
        time: at(4),
        elapsed: Duration::ZERO,
        boot,
    };

    records
        .note(&name("n1"), &issued(Some(boot)))
        .await
        .unwrap();
    // The node requested this certificate without a TPM.
    records.note(&name("n1"), &issued(None)).await.unwrap();

    let (end, time) = (
        object::moment(at(12)).unwrap(),
        object::moment(at(4)).unwrap(),
    );
    let status = json!({"path": "status", "body": {"status": {
        "serial": "0a", "notAfter": end, "lastRenewal": time, "lastTpmBoot": null,
    }}});
    let spec = |mut spec: Value, boot| {
        if let Some(boot) = boot {
            spec["lastTpmBoot"] = json!({"generation": 2, "time": time, "boot": boot});
        }
        json!({"path": "prod-1.n1", "body": {"spec": spec}})
    };
    let expected = [
        spec(json!({"renewedUntil": end}), Some(json!(boot))),
        status.clone(),
        spec(json!({"renewedUntil": end}), None),
        status,
    ];
    assert_eq!(*written.lock(), expected);
}
