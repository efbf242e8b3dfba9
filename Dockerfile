# An image without a base image: one static binary, the CA roots of the builder, no shell, no user
# database. `docker build -t nap .` builds it; any builder of Dockerfiles does.
#
# The binary is linked statically against musl, so that nothing is missing in an empty image. Time
# zones are built in. It runs as 65532, writes nothing to its file system, and needs no capability.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev ca-certificates
WORKDIR /nap
COPY . .
ARG NAP_COMMIT=unknown
ENV NAP_COMMIT=$NAP_COMMIT
RUN cargo build --locked --profile dist --package nap \
    && strip --strip-debug target/dist/nap

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /nap/target/dist/nap /nap
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/nap"]
CMD ["run"]
