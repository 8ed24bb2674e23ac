//! Tests of a management cluster whose API server does not respond to a write.

use super::*;

/// The time at which the Cluster is created. At that time, the write of the first status is in progress.
const APPEARS: Duration = Duration::from_secs(2);

/// A management cluster with a `KubeletAuthentication` whose Cluster is created later. Counts the calls for Secrets.
async fn without_writes(
    request: Request<kube::client::Body>,
    of_secrets: Arc<Mutex<usize>>,
) -> Answer {
    let path = request.uri().path().to_owned();
    let query = request.uri().query();
    let is_watch = query.is_some_and(|query| query.contains("watch="));
    if request.method() == Method::PUT && path.ends_with("/status") {
        return pending().await;
    }
    let kind = path.rsplit('/').next().unwrap();
    if kind == "secrets" {
        *of_secrets.lock().unwrap() += 1;
    }
    if is_watch {
        let event = stream::once(async {
            sleep(APPEARS).await;
            let event = json!({"type": "ADDED", "object": cluster(0)}).to_string() + "\n";
            Ok(Frame::data(Bytes::from(event)))
        });
        let count = usize::from(kind == "clusters");
        let events = event.take(count).chain(stream::pending());
        return Response::new(StreamBody::new(events).boxed_unsync());
    }
    let items = match kind {
        "kubeletauthentications" => vec![authentication(0, 1)],
        "clusters" => Vec::new(),
        _ => return answer(request, Written::default()).await,
    };
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
    whole(200, &list)
}

#[tokio::test(start_paused = true)]
async fn a_status_write_without_an_answer_does_not_delay_a_new_cluster() {
    let of_secrets: Arc<Mutex<usize>> = Arc::default();
    let noted = of_secrets.clone();
    let management =
        ClusterAccess::in_memory(move |request| without_writes(request, noted.clone()));
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&management, Settings::default(), Arc::new(verifiers));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));
    sleep(APPEARS / 2).await;
    assert_eq!(*of_secrets.lock().unwrap(), 0);

    sleep(APPEARS).await;

    assert!(*of_secrets.lock().unwrap() > 0);
    drop(stop);
    running.await.unwrap();
}
