CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL REFERENCES customer, amount numeric NOT NULL, shipped boolean NOT NULL DEFAULT false);
CREATE INDEX ON orders (customer);
INSERT INTO customer VALUES (7, 'Ann'), (8, 'Bob');
INSERT INTO orders VALUES (1, 7, 10), (2, 7, 20), (3, 8, 5);
