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
}

impl ChainedTokens {
    /// Creates a chain of named sources.
    pub fn new(sources: Vec<(&'static str, Arc<dyn TokenProvider>)>) -> Self {
        Self { sources, works: tokio::sync::Mutex::new(0) }
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
                Err(error) => failures.push(format!("{name}: {}", error.message)),
            }
        }
        let message = format!("no credentials work; {}", failures.join("; "));
        Err(CloudError::new(ErrorClass::Auth, "get a token", "NoCredentials", message))
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

    #[tokio::test]
    async fn the_error_names_every_source_that_was_tried() {
        let (tokens, _) = chain([false, false]);
        let error = tokens.token().await.map(|_| ()).unwrap_err();
        assert_eq!(error.message, "no credentials work; first: no answer; second: no answer");
    }
}
