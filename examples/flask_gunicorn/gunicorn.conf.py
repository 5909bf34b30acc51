"""Each worker delivers, from its fork to its end; with and without --preload."""

workers = 2


def post_worker_init(worker):
    from shop import deliver

    worker.delivery = deliver().start()


def worker_exit(server, worker):
    if delivery := getattr(worker, "delivery", None):
        delivery.stop()
