//! Tests of a `KubeletAuthentication` or a Cluster that cannot be read.

use super::*;

/// A management cluster with an unreadable `KubeletAuthentication` that is listed and then changed. Its Cluster, which
/// has this label, is created 5 seconds later. Records Events, the first of which fails.
async fn unreadable(
    request: Request<kube::client::Body>,
    labels: [Option<&'static str>; 2],
    noted: Arc<Mutex<Vec<Value>>>,
) -> Answer {
    let [label, label_of_cluster] =
        labels.map(|label| label.map_or(json!({}), |label| json!({WATCH_FILTER_LABEL: label})));
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=");
    if path.ends_with("/events") {
        let event = request.into_body().collect().await.unwrap().to_bytes();
        let event: Value = serde_json::from_slice(&event).unwrap();
        let mut noted = noted.lock().unwrap();
        noted.push(event.clone());
        let code = if noted.len() == 1 { 503 } else { 201 };
        return whole(code, &event);
    }
    let version = |number| {
        let mut object = authentication(0, number);
        object["metadata"]["labels"] = label.clone();
        object["spec"]["clusterName"] = json!(["a secret"]);
        object
    };
    let mut of_watch = cluster(0);
    of_watch["metadata"]["labels"] = label_of_cluster;
    let (events, items) = match path.rsplit('/').next().unwrap() {
        // The watch sends the first version again, and then another version.
        "kubeletauthentications" => (vec![version(1), version(2)], vec![version(1)]),
        "clusters" => (vec![of_watch], Vec::new()),
        _ => return answer(request, Written::default()).await,
    };
    if is_watch {
        let after = Duration::from_secs(if path.ends_with("/clusters") { 5 } else { 0 });
        let event =
            |object: Value| json!({"type": "MODIFIED", "object": object}).to_string() + "\n";
        let events: Vec<String> = events.into_iter().map(event).collect();
        let events = stream::once(async move {
            sleep(after).await;
            Ok(Frame::data(Bytes::from(events.concat())))
        });
        let events = events.chain(stream::pending());
        return Response::new(StreamBody::new(events).boxed_unsync());
    }
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
    whole(200, &list)
}

#[tokio::test(start_paused = true)]
async fn an_event_names_each_unreadable_version_of_an_authentication() {
    let (blue, green) = (Some("blue"), Some("green"));
    for (filter, labels, expected) in [
        (None, [None, None], 2),
        // The label of the Cluster determines the controller.
        (blue, [None, blue], 2),
        (blue, [None, None], 0),
        (blue, [green, green], 0),
        // Until the Cluster exists, the label of the `KubeletAuthentication` determines the controller.
        (blue, [blue, green], 2),
    ] {
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let noted = events.clone();
        let management =
            ClusterAccess::in_memory(move |request| unreadable(request, labels, noted.clone()));
        let mut settings = Settings::default();
        settings.selection.watch_filter = filter.map(str::to_owned);
        let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
        let controller = Controller::new(&management, settings, Arc::new(verifiers));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

        sleep(Duration::from_mins(1)).await;

        let events = events.lock().unwrap().clone();
        // The controller has written the first Event again.
        let expected = if expected > 0 { expected + 1 } else { 0 };
        assert_eq!(events.len(), expected, "{filter:?} {labels:?}: {events:?}");
        for event in events {
            assert_eq!(event["type"], "Warning");
            assert_eq!(event["reason"], "Unreadable");
            assert_eq!(event["regarding"]["kind"], "KubeletAuthentication");
            assert_eq!(event["regarding"]["name"], "c0");
            let note = event["note"].as_str().unwrap();
            assert!(note.contains("invalid type"), "{note}");
            assert!(!note.contains("a secret"), "{note}");
        }
        drop(stop);
        running.await.unwrap();
    }
}

/// The number of unreadable `KubeletAuthentication`s in each of two namespaces. Together, they exceed the burst for
/// Events.
const MANY: usize = 90;

/// A management cluster with many `KubeletAuthentication`s that cannot be read. Records the objects of Events.
async fn many_unreadable(
    request: Request<kube::client::Body>,
    noted: Arc<Mutex<BTreeSet<String>>>,
) -> Answer {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=");
    if path.ends_with("/events") {
        let event = request.into_body().collect().await.unwrap().to_bytes();
        let event: Value = serde_json::from_slice(&event).unwrap();
        noted.lock().unwrap().insert(event["regarding"].to_string());
        return whole(201, &event);
    }
    if is_watch {
        return Response::new(StreamBody::new(stream::pending()).boxed_unsync());
    }
    let items: Vec<Value> = match path.rsplit('/').next().unwrap() {
        "kubeletauthentications" => {
            let object = |number| {
                let mut object = authentication(number, 1);
                let namespace = ["many-a", "many-b"][number % 2];
                object["metadata"]["namespace"] = json!(namespace);
                object["spec"] = json!("unreadable");
                object
            };
            (0..2 * MANY).map(object).collect()
        }
        "clusters" => Vec::new(),
        _ => return answer(request, Written::default()).await,
    };
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
    whole(200, &list)
}

#[tokio::test(start_paused = true)]
async fn events_about_many_unreadable_authentications_wait_for_turns() {
    let reported: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let noted = reported.clone();
    let management =
        ClusterAccess::in_memory(move |request| many_unreadable(request, noted.clone()));
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_mins(1)).await;

    assert_eq!(reported.lock().unwrap().len(), 2 * MANY);
    drop(stop);
    running.await.unwrap();
}

/// A management cluster with one `KubeletAuthentication` whose Cluster cannot be read. Records the condition Ready.
async fn unreadable_cluster(
    request: Request<kube::client::Body>,
    noted: Arc<Mutex<Vec<Value>>>,
) -> Answer {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    if query.contains("watch=") {
        return Response::new(StreamBody::new(stream::pending()).boxed_unsync());
    }
    if request.method() == Method::PUT && path.ends_with("/status") {
        let object = request.into_body().collect().await.unwrap().to_bytes();
        let object: Value = serde_json::from_slice(&object).unwrap();
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|one| one["type"] == "Ready");
        noted.lock().unwrap().push(ready.unwrap().clone());
        return whole(200, &object);
    }
    let object = match path.rsplit('/').next().unwrap() {
        "kubeletauthentications" => authentication(0, 1),
        "clusters" => {
            let mut cluster = cluster(0);
            cluster["spec"] = json!("unreadable");
            cluster
        }
        _ => return answer(request, Written::default()).await,
    };
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": [object]});
    whole(200, &list)
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_cluster_is_named_in_the_condition_ready() {
    let reported: Arc<Mutex<Vec<Value>>> = Arc::default();
    let noted = reported.clone();
    let management =
        ClusterAccess::in_memory(move |request| unreadable_cluster(request, noted.clone()));
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_secs(30)).await;

    let last = reported.lock().unwrap().last().unwrap().clone();
    assert_eq!(last["status"], "False", "{last}");
    assert_eq!(last["reason"], "ClusterNotFound", "{last}");
    assert_eq!(
        last["message"],
        "the controller cannot read Cluster c0: the log contains the cause"
    );
    drop(stop);
    running.await.unwrap();
}
