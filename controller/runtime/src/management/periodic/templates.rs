//! Bootstrap templates whose future machines could not join while attestation is enforced.

use tokio::time::timeout;

use super::{MAX_NAMED, PART_DEADLINE, PartError, PeriodicTasks};
use crate::capi::Recorded;

impl PeriodicTasks {
    /// The message about templates whose future machines could not join. `None` if there are none.
    pub(super) async fn templates_without_plugin(&self) -> Option<String> {
        let found = async {
            let records = self.records().await?;
            let recorded = Recorded::of(&records).await;
            drop(records);
            let found = self.inventory.without_plugin(&recorded).await;
            found.map_err(|error| PartError::of(&error))
        };
        // The reads wait for their turn without a deadline, and the revocations in the same round wait for the reads.
        let found = timeout(PART_DEADLINE, Box::pin(found)).await;
        without_plugin(found.unwrap_or(Err(PartError::Late(PART_DEADLINE))))
    }
}

/// The message about objects whose future machines could not join. `None` if there are none.
fn without_plugin(found: Result<Vec<String>, PartError>) -> Option<String> {
    let objects = match found {
        Ok(objects) => objects,
        Err(error) => {
            return Some(format!(
                "enforcement waits until the bootstrap templates can be read: {error}"
            ));
        }
    };
    let named: Vec<&str> = objects.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = if objects.len() > MAX_NAMED {
        ", and others"
    } else {
        ""
    };
    let text = || {
        format!(
            "enforcement waits until these bootstrap templates contain the plugin, because new machines from these \
             templates could not join: {}{more} (add the plugin, or set autoApproveBindings: RemoveNow)",
            named.join(", ")
        )
    };
    (!named.is_empty()).then(text)
}

#[cfg(test)]
mod tests {
    use super::{PartError, without_plugin};

    #[test]
    fn a_few_templates_without_the_plugin_are_named() {
        let objects =
            |count: usize| (0..count).map(|number| format!("MachineDeployment w{number}"));
        let message = |count: usize| without_plugin(Ok(objects(count).collect()));

        assert_eq!(message(0), None);
        let one = message(1).unwrap();
        assert!(
            one.contains("could not join: MachineDeployment w0 (add the plugin"),
            "{one}"
        );
        let many = message(6).unwrap();
        assert!(
            many.contains("MachineDeployment w4, and others (add"),
            "{many}"
        );
        assert!(!many.contains("w5"), "{many}");
        let unread = without_plugin(Err(PartError::Call("forbidden".to_owned()))).unwrap();
        assert_eq!(
            unread,
            "enforcement waits until the bootstrap templates can be read: forbidden"
        );
    }
}
