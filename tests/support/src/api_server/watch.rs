//! Watches: streams of the changes after a `resourceVersion`.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;

use super::faults::Fault;
use super::resource::{REQUESTS, Resource, Target};
use super::status::Refusal;
use super::store::{Selection, Store};
use super::{Shared, lock};

/// A piece of a body. An error closes the connection.
pub(super) type Piece = Result<Frame<Bytes>, std::io::Error>;

/// The time that is allowed for sent data to leave the process before the connection is closed.
const FLUSH: Duration = Duration::from_millis(20);

/// The duration of a watch whose request does not specify a duration. The real server uses 30 to 60 minutes.
const LONGEST: Duration = Duration::from_secs(1800);

/// The parameters of a watch.
#[derive(Debug)]
pub(super) struct WatchPlan {
    selection: Selection,
    from: u64,
    initial: Vec<Value>,
    ends_initial: bool,
    bookmarks: bool,
    timeout: Duration,
}

impl WatchPlan {
    /// Reads the parameters. If no version is given, the existing objects are first reported as added.
    pub(super) fn new(
        store: &Store,
        resource: &'static Resource,
        target: &Target,
    ) -> Result<Self, Refusal> {
        let selection = Selection::parse(resource, target)?;
        let version = target.parameter("resourceVersion").unwrap_or_default();
        let asked: u64 = match version {
            "" => 0,
            version => version.parse().map_err(|_| {
                Refusal::bad_request(&format!("Invalid value: {version:?}: invalid version"))
            })?,
        };
        let ends_initial = target.flag("sendInitialEvents");
        let shows_initial = asked == 0 || ends_initial;
        let initial = if shows_initial {
            store
                .list(&selection)
                .iter()
                .map(|object| resource.show(object))
                .collect()
        } else {
            Vec::new()
        };
        let timeout = target
            .parameter("timeoutSeconds")
            .and_then(|seconds| seconds.parse().ok())
            .map_or(LONGEST, Duration::from_secs);
        Ok(Self {
            selection,
            from: if shows_initial {
                store.version()
            } else {
                asked
            },
            initial,
            ends_initial,
            bookmarks: target.flag("allowWatchBookmarks"),
            timeout,
        })
    }
}

/// The reason for an early end of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cut,
    Clean,
}

/// Sends the changes until the duration has passed, the client disconnects, or a fault ends the watch.
pub(super) async fn run(
    shared: Arc<Shared>,
    plan: WatchPlan,
    fault: Option<Fault>,
    sender: Sender<Piece>,
) {
    let (limit, end) = match fault {
        Some(Fault::WatchCut { after }) => (after, End::Cut),
        Some(Fault::WatchEnd { after }) => (after, End::Clean),
        _ => (usize::MAX, End::Clean),
    };
    let only_bookmark = matches!(fault, Some(Fault::WatchBookmarkOnly));
    let mut stream = Stream {
        sender,
        left: limit,
    };
    match fault {
        Some(Fault::WatchGone) => {
            let gone = Refusal::expired(plan.from, plan.from + 1);
            let _ = stream.send("ERROR", &gone.body).await;
            return;
        }
        Some(Fault::WatchFlood) => {
            let mut object = bookmark(plan.selection.resource, plan.from);
            for number in plan.from.. {
                object["metadata"]["name"] = format!("flood-{number}").into();
                object["metadata"]["uid"] = number.to_string().into();
                object["metadata"]["resourceVersion"] = number.to_string().into();
                if stream.send("ADDED", &object).await.is_err() {
                    return;
                }
            }
        }
        Some(Fault::WatchGarbage) => {
            let _ = stream
                .send_raw(Bytes::from_static(b"{\"type\":\"ADDED\",\n"))
                .await;
            return;
        }
        _ => {}
    }
    let finished = if only_bookmark {
        let version = lock(&shared.state).store.version();
        let sent = stream
            .send("BOOKMARK", &bookmark(plan.selection.resource, version))
            .await;
        match sent {
            Ok(()) => wait_out(&stream.sender, plan.timeout).await,
            Err(stopped) => stopped,
        }
    } else {
        follow(&shared, &plan, &mut stream).await
    };
    if finished == Stopped::AtLimit && end == End::Cut {
        tokio::time::sleep(FLUSH).await;
        let cut = std::io::Error::other("the watch is cut");
        let _ = stream.sender.send(Err(cut)).await;
    }
}

/// The reason for the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    AtLimit,
    Over,
}

struct Stream {
    sender: Sender<Piece>,
    left: usize,
}

impl Stream {
    async fn send(&mut self, kind: &str, object: &Value) -> Result<(), Stopped> {
        if self.left == 0 {
            return Err(Stopped::AtLimit);
        }
        // The type is sent first, as in kube-apiserver. If the object came first, decoders would buffer it, and parse
        // fewer levels.
        let line = format!("{{\"type\":{},\"object\":{object}}}\n", json!(kind));
        self.send_raw(line.into()).await?;
        self.left -= 1;
        if self.left == 0 {
            Err(Stopped::AtLimit)
        } else {
            Ok(())
        }
    }

    async fn send_raw(&mut self, bytes: Bytes) -> Result<(), Stopped> {
        self.sender
            .send(Ok(Frame::data(bytes)))
            .await
            .map_err(|_| Stopped::Over)
    }
}

async fn wait_out(sender: &Sender<Piece>, timeout: Duration) -> Stopped {
    tokio::select! {
        () = sender.closed() => {}
        () = tokio::time::sleep(timeout) => {}
    }
    Stopped::Over
}

async fn follow(shared: &Shared, plan: &WatchPlan, stream: &mut Stream) -> Stopped {
    match follow_until_stopped(shared, plan, stream).await {
        Ok(never) => match never {},
        Err(stopped) => stopped,
    }
}

async fn follow_until_stopped(
    shared: &Shared,
    plan: &WatchPlan,
    stream: &mut Stream,
) -> Result<std::convert::Infallible, Stopped> {
    if stream.left == 0 {
        return Err(Stopped::AtLimit);
    }
    let mut latest = lock(&shared.state).store.subscribe();
    let mut bookmarks = shared.bookmarks.subscribe();
    let deadline = tokio::time::Instant::now() + plan.timeout;
    let resource = plan.selection.resource;
    let mut seen = plan.from;
    for object in &plan.initial {
        stream.send("ADDED", object).await?;
    }
    if plan.ends_initial {
        let mut end = bookmark(resource, seen);
        end["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        stream.send("BOOKMARK", &end).await?;
    }
    loop {
        latest.mark_unchanged();
        let (changes, version) = {
            let state = lock(&shared.state);
            (
                state.store.changes(&plan.selection, seen),
                state.store.version(),
            )
        };
        match changes {
            Ok(changes) => {
                for change in changes {
                    stream
                        .send(change.happened.as_str(), &resource.show(&change.object))
                        .await?;
                }
                seen = version;
            }
            Err(refusal) => {
                stream.send("ERROR", &refusal.body).await?;
                return Err(Stopped::Over);
            }
        }
        tokio::select! {
            _ = latest.changed() => {}
            _ = bookmarks.changed() => {
                if plan.bookmarks {
                    stream.send("BOOKMARK", &bookmark(resource, seen)).await?;
                }
            }
            () = stream.sender.closed() => return Err(Stopped::Over),
            () = tokio::time::sleep_until(deadline) => {
                if plan.bookmarks {
                    stream.send("BOOKMARK", &bookmark(resource, seen)).await?;
                }
                return Err(Stopped::Over);
            }
        }
    }
}

fn bookmark(resource: &Resource, version: u64) -> Value {
    let mut object = json!({
        "kind": resource.kind,
        "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
    });
    if resource == &REQUESTS {
        object["spec"] = json!({"request": null, "signerName": ""});
        object["status"] = json!({});
    }
    object
}
