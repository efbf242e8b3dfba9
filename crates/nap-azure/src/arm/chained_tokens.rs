//! Several sources of tokens, of which the first that works is used.

use std::sync::Arc;

use async_trait::async_trait;
use nap_cloud::{CloudError, ErrorClass};

use super::token::{AccessToken, TokenProvider};

/// Sources of tokens in the order in which they are tried, with their names.
pub struct ChainedTokens {
    sources: Vec<(&'static str, Arc<dyn TokenProvider>)>,
    /// The source that worked last; it is tried first.
    works: tokio::sync::Mutex<usize>,
    /// Whether a source that does not answer is out of order, rather than not there.
    silence_passes: bool,
}

impl ChainedTokens {
    /// Creates a chain of named sources.
    pub fn new(sources: Vec<(&'static str, Arc<dyn TokenProvider>)>) -> Self {
        Self { sources, works: tokio::sync::Mutex::new(0), silence_passes: false }
    }

    /// The same chain where some source must be there: that none answers passes.
    #[must_use]
    pub fn where_silence_passes(self) -> Self {
        Self { silence_passes: true, ..self }
    }

    fn is_passing(&self, error: &CloudError) -> bool {
        let is_silent = ["Timeout", "TransportError"].contains(&error.code.as_str());
        error.class == ErrorClass::Transient && (self.silence_passes || !is_silent)
    }
}

#[async_trait]
impl TokenProvider for ChainedTokens {
    async fn token(&self) -> Result<AccessToken, CloudError> {
        let mut works = self.works.lock().await;
        let mut failures = Vec::new();
        for step in 0..self.sources.len() {
            let number = (*works + step) % self.sources.len();
            let (name, source) = &self.sources[number];
            match source.token().await {
                Ok(token) => {
                    *works = number;
                    return Ok(token);
                }
                Err(error) => failures.push((*name, error)),
            }
        }
        let said: Vec<String> =
            failures.iter().map(|(name, error)| format!("{name}: {}", error.message)).collect();
        let message = format!("no credentials work; {}", said.join("; "));
        let is_passing = failures.iter().any(|(_, error)| self.is_passing(error));
        let class = if is_passing { ErrorClass::Transient } else { ErrorClass::Auth };
        let id = failures.into_iter().find_map(|(_, error)| error.correlation_id);
        let error = CloudError::new(class, "get a token", "NoCredentials", message);
        Err(error.with_correlation_id(id))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::Timestamp;

    use super::*;

    /// A source that works or does not, and counts how often it is asked.
    struct Source(bool, Arc<AtomicUsize>);

    #[async_trait]
    impl TokenProvider for Source {
        async fn token(&self) -> Result<AccessToken, CloudError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            if self.0 {
                return Ok(AccessToken { secret: "t".to_owned(), expires: Timestamp::MAX });
            }
            Err(CloudError::new(ErrorClass::Auth, "get a token", "No", "no answer"))
        }
    }

    fn chain(works: [bool; 2]) -> (ChainedTokens, [Arc<AtomicUsize>; 2]) {
        let counts = [Arc::default(), Arc::default()];
        let source = |number: usize| -> Arc<dyn TokenProvider> {
            Arc::new(Source(works[number], Arc::clone(&counts[number])))
        };
        (ChainedTokens::new(vec![("first", source(0)), ("second", source(1))]), counts)
    }

    #[tokio::test]
    async fn the_source_that_worked_is_tried_first() {
        let (tokens, counts) = chain([false, true]);
        for _ in 0..3 {
            assert_eq!(tokens.token().await.unwrap().secret, "t");
        }
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 3]);
    }

    /// A source that fails with a class and a code.
    struct Failing(ErrorClass, &'static str);

    #[async_trait]
    impl TokenProvider for Failing {
        async fn token(&self) -> Result<AccessToken, CloudError> {
            let error = CloudError::new(self.0, "get a token", self.1, "x");
            Err(error.with_correlation_id(Some("id".to_owned())))
        }
    }

    #[tokio::test]
    async fn an_outage_is_told_from_missing_credentials() {
        use ErrorClass::{Auth, Transient};
        for (class, code, on_a_laptop, in_a_pod) in [
            (Transient, "HTTP410", Transient, Transient),
            (Transient, "Timeout", Auth, Transient),
            (Transient, "TransportError", Auth, Transient),
            (Auth, "HTTP400", Auth, Auth),
        ] {
            for (is_pod, expected) in [(false, on_a_laptop), (true, in_a_pod)] {
                let none = Arc::new(Failing(Auth, "NotInstalled"));
                let first = Arc::new(Failing(class, code));
                let tokens = ChainedTokens::new(vec![("first", first), ("second", none)]);
                let tokens = if is_pod { tokens.where_silence_passes() } else { tokens };
                let error = tokens.token().await.map(|_| ()).unwrap_err();
                assert_eq!(error.class, expected, "{code} in a pod: {is_pod}");
                assert_eq!(error.correlation_id.as_deref(), Some("id"));
            }
        }
    }

    #[tokio::test]
    async fn the_error_names_every_source_that_was_tried() {
        let (tokens, _) = chain([false, false]);
        let error = tokens.token().await.map(|_| ()).unwrap_err();
        assert_eq!(error.message, "no credentials work; first: no answer; second: no answer");
    }
}
