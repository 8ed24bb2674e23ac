//! Tests of a `KubeletAuthentication` that is deleted and recreated constantly.

use super::*;

/// A management cluster that alternately deletes and creates the `KubeletAuthentication` every 10 ms. Records the lists
/// of Secrets.
async fn answer_of_storm(
    request: Request<kube::client::Body>,
    (written, lists): (Written, Arc<Mutex<usize>>),
) -> Answer {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=");
    if path.ends_with("/secrets") && !is_watch {
        *lists.lock().unwrap() += 1;
    }
    if !path.ends_with("/kubeletauthentications") {
        return answer(request, written).await;
    }
    if !is_watch {
        let metadata = json!({"resourceVersion": "1"});
        let items = [authentication(0, 1)];
        let list =
            json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
        return whole(200, &list);
    }
    let events = stream::iter(2..=LAST).then(|generation| async move {
        sleep(Duration::from_millis(10)).await;
        let kind = if generation == LAST || generation % 2 == 1 {
            "ADDED"
        } else {
            "DELETED"
        };
        let event = json!({"type": kind, "object": authentication(0, generation)});
        Ok(Frame::data(Bytes::from(event.to_string() + "\n")))
    });
    Response::new(StreamBody::new(events.chain(stream::pending())).boxed_unsync())
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_constantly_recreated_causes_few_watches() {
    let written: Written = Written::default();
    let lists: Arc<Mutex<usize>> = Arc::default();
    let noted = (written.clone(), lists.clone());
    let management =
        ClusterAccess::in_memory(move |request| answer_of_storm(request, noted.clone()));
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_secs(40)).await;

    let has_last = written.lock().unwrap().contains(&("c0".to_owned(), LAST));
    assert!(has_last, "the last object is served");
    let lists = *lists.lock().unwrap();
    assert!((2..100).contains(&lists), "{lists} lists of Secrets");
    drop(stop);
    running.await.unwrap();
}
