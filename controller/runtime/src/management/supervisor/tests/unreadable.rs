//! A `KubeletAuthentication` or a Cluster that cannot be read.

use super::*;

/// A management cluster with a `KubeletAuthentication` that is listed and then changed, and cannot be read. Notes
/// Events.
async fn unreadable(request: Request<kube::client::Body>, noted: Arc<Mutex<Vec<Value>>>) -> Answer {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=");
    if path.ends_with("/events") {
        let event = request.into_body().collect().await.unwrap().to_bytes();
        let event: Value = serde_json::from_slice(&event).unwrap();
        noted.lock().unwrap().push(event.clone());
        return whole(201, &event);
    }
    if !path.ends_with("/kubeletauthentications") {
        return answer(request, Written::default()).await;
    }
    let version = |number| {
        let mut object = authentication(0, number);
        object["spec"]["clusterName"] = json!(["a secret"]);
        object
    };
    if is_watch {
        // The first version again, and another one.
        let events = [1, 2].map(|number| {
            let event = json!({"type": "MODIFIED", "object": version(number)});
            Ok(Frame::data(Bytes::from(format!("{event}\n"))))
        });
        let events = stream::iter(events).chain(stream::pending());
        return Response::new(StreamBody::new(events).boxed_unsync());
    }
    let metadata = json!({"resourceVersion": "1"});
    let items = [version(1)];
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
    whole(200, &list)
}

#[tokio::test(start_paused = true)]
async fn an_event_names_each_unreadable_version_of_an_authentication() {
    for (filter, expected) in [(None, 2), (Some("blue".to_owned()), 0)] {
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let noted = events.clone();
        let management =
            ClusterAccess::in_memory(move |request| unreadable(request, noted.clone()));
        let mut settings = Settings::default();
        settings.selection.watch_filter = filter;
        let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
        let controller = Controller::new(&management, settings, Arc::new(verifiers));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

        sleep(Duration::from_secs(10)).await;

        let events = events.lock().unwrap().clone();
        assert_eq!(events.len(), expected, "{events:?}");
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

/// A management cluster with one `KubeletAuthentication`, whose Cluster cannot be read. Notes the condition Ready.
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
